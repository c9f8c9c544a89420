"""What must hold of the driver's decisions whatever the group looks like."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from steadyray.contract import Depth, FailureClass
from steadyray.messages import STAGES, MemberState, Report
from steadyray.recovery import (
    RULES,
    Abort,
    Break,
    Breaking,
    Fail,
    GroupView,
    Keep,
    Lose,
    Loss,
    MemberView,
    Patience,
    Regroup,
    decide,
)

from .groups import DATA, ERROR, NOW, group, out, rank

IDS = "abcd"
PLENTY = settings(max_examples=200, deadline=None)


@st.composite
def members(draw: st.DrawFn, id: str) -> MemberView:
    state = draw(st.sampled_from(MemberState))
    report = Report(
        state, generation=draw(st.sampled_from([0, 1, 1, 2])), rank=draw(st.integers(-1, 5)),
        step=draw(st.integers(0, 12)), stage=draw(st.integers(0, len(STAGES) - 1)), clean=draw(st.booleans()),
        fresh=draw(st.booleans()), phase=draw(st.sampled_from(["", "", "eval"])), patience=60.0,
        step_seconds=draw(st.sampled_from([None, 0.1, 3.0])), leaving=draw(st.booleans()),
        error=ERROR if state is MemberState.RAISED else None,
        lost_peer=draw(st.sampled_from(["", "", "reset"])),
    )  # fmt: skip
    dead = draw(st.sampled_from(["", "", "killed"]))
    return MemberView(
        id, draw(st.sampled_from(["n1", "n2"])), report, NOW - draw(st.sampled_from([0.0, 1.5, 9.0])), dead,
        node_gone=bool(dead) and draw(st.booleans()), draining=draw(st.booleans()), ended=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def groups(draw: st.DrawFn) -> GroupView:
    known = {id: draw(members(id)) for id in draw(st.sets(st.sampled_from(IDS)))}
    ranks = tuple(draw(st.permutations(sorted(known))))[: draw(st.integers(0, len(known)))]
    low = draw(st.integers(1, 3))
    gone = [Loss(m, draw(st.sampled_from([FailureClass.HANG, FailureClass.PREEMPTED])), "x") for m in ranks]
    lost = tuple(loss for loss in gone if draw(st.booleans()))
    since = NOW - draw(st.sampled_from([0.0, 2.0, 90.0]))
    left = draw(
        st.sampled_from([None, Breaking(since, lost), Breaking(since, lost, True, draw(st.booleans()))])
    )
    return GroupView(
        NOW, low, max(low, len(ranks), draw(st.integers(1, 4))), known, 1 if ranks else 0, ranks,
        left if ranks else None, last_step=draw(st.integers(0, 12)),
        last_step_at=NOW - draw(st.sampled_from([0.0, 7.0, 70.0])),
        waiting_since=NOW - draw(st.sampled_from([0.0, 400.0])),
        enough_since=draw(st.sampled_from([None, NOW, NOW - 9])), charged=draw(st.integers(0, 4)),
        false_alarms=draw(st.integers(0, 2)),
        hangs=tuple(draw(st.lists(st.tuples(st.integers(9, 11), st.sampled_from(["n1", "n2"])), max_size=3))),
    )  # fmt: skip


def known_lost(view: GroupView) -> set[str]:
    return {loss.member for loss in view.breaking.lost} if view.breaking else set()


@PLENTY
@given(groups())
def test_the_next_generation_is_made_of_living_ready_members_each_in_one_place(view: GroupView) -> None:
    answer = decide(view)
    if not isinstance(answer, Regroup):
        return
    assert len(set(answer.ranks)) == len(answer.ranks)
    assert view.workers_min <= len(answer.ranks) <= view.workers_max
    for member in (view.members[id] for id in answer.ranks):
        assert member.id not in known_lost(view)
        assert not member.dead
        assert not member.ended
        assert member.report.state in (MemberState.READY, MemberState.FINISHED)
    leavers = [id for id in answer.ranks if view.members[id].leaving]
    # Who is to go takes part once more only as the one that still has the state.
    assert len(leavers) <= 1
    assert not leavers or answer.source == answer.ranks.index(leavers[0])
    assert not leavers or not any(has_state(view, id) for id in answer.ranks if id not in leavers)


def has_state(view: GroupView, id: str) -> bool:
    report = view.members[id].report
    return id in view.ranks and report.clean and not report.fresh


@PLENTY
@given(groups())
def test_the_source_of_a_recovery_is_the_newest_whole_state_and_never_receives(view: GroupView) -> None:
    answer = decide(view)
    if not isinstance(answer, Regroup):
        return
    old = [view.members[id].report for id in answer.ranks if id in view.ranks]
    whole = [report.step for report in old if report.clean and not report.fresh]
    if answer.source is None:
        assert whole == []
        assert answer.depth is Depth.RELOAD
        assert answer.receivers == tuple(range(1, len(answer.ranks)))
        return
    source = view.members[answer.ranks[answer.source]].report
    assert source.clean
    assert not source.fresh
    assert source.step == answer.from_step == max(whole)
    assert answer.source not in answer.receivers
    for place, id in enumerate(answer.ranks):
        has_it = view.members[id].report.step == source.step and id in view.ranks
        assert place in answer.receivers or (has_it and view.members[id].report.clean)


@PLENTY
@given(groups())
def test_an_error_of_the_users_code_is_never_followed_by_another_try(view: GroupView) -> None:
    raised = any(m.report.state is MemberState.RAISED for m in view.members.values())
    answer = decide(view)
    assert not raised or isinstance(answer, Fail)


@PLENTY
@given(groups())
def test_only_members_of_the_group_are_lost_and_nobody_twice(view: GroupView) -> None:
    answer = decide(view)
    if isinstance(answer, Break | Lose):
        gone = [loss.member for loss in answer.lost]
        assert len(set(gone)) == len(gone)
        # who was told to hand over may be lost before it has
        assert set(gone) <= set(view.ranks) - (known_lost(view) - view.told())
    if isinstance(answer, Break):
        assert view.breaking is None
        assert answer.message
    if isinstance(answer, Lose):
        assert answer.lost
    if isinstance(answer, Abort | Lose):
        assert view.breaking is not None


@PLENTY
@given(groups())
def test_a_spent_budget_allows_no_further_charged_break(view: GroupView) -> None:
    answer = decide(view)
    free = {FailureClass.PREEMPTED, FailureClass.MAINTENANCE}
    if isinstance(answer, Break) and view.charged >= view.patience.charged and not answer.planned:
        assert all(loss.failure_class in free for loss in answer.lost)


@PLENTY
@given(groups())
def test_nobody_is_called_hung_before_the_shortest_patience_is_over(view: GroupView) -> None:
    answer = decide(view)
    if isinstance(answer, Break) and any(loss.failure_class is FailureClass.HANG for loss in answer.lost):
        assert view.now - view.last_step_at >= Patience().hang_floor


@PLENTY
@given(groups())
def test_the_same_view_gets_the_same_answer_from_the_first_rule_that_has_one(view: GroupView) -> None:
    answers = [answer for rule in RULES if (answer := rule(view)) is not None]
    assert decide(view) == decide(view) == (answers[0] if answers else Keep("Training"))


@PLENTY
@given(st.lists(st.sampled_from(["crash", "hang", "network", "after the end"]), min_size=4, max_size=12))
def test_faults_without_a_new_step_in_between_end_the_job_within_its_budget(faults: list[str]) -> None:
    """The driver's bookkeeping in small: a charged break and the regrouping after it, again and again."""
    charged = 0
    for fault in faults:
        answer = decide(_hurt(fault, charged))
        if isinstance(answer, Fail):
            break
        assert isinstance(answer, Break)
        charged += 1
    assert charged == Patience().charged


def _hurt(fault: str, charged: int) -> GroupView:
    match fault:
        case "crash":
            return group(rank("a"), rank("b", dead="x"), charged=charged)
        case "hang":
            return group(rank("a"), rank("b", stage=DATA), charged=charged, last_step_at=NOW - 9)
        case "network":
            return group(out("a", lost_peer="reset"), rank("b"), charged=charged)
    over = {"state": MemberState.FINISHED, "ended": True}
    return group(rank("a", dead="x", **over), rank("b", **over), charged=charged)
