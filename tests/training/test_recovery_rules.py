"""The driver's decisions, without Ray: each rule on small groups, and what must hold for any group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steadyray.contract import Depth, FailureClass
from steadyray.messages import STAGES, MemberError, MemberState, Report
from steadyray.recovery import (
    RULES,
    Abort,
    Answer,
    Break,
    Breaking,
    Done,
    End,
    Fail,
    GroupView,
    Keep,
    Lose,
    Loss,
    MemberView,
    Patience,
    Regroup,
    SaveOften,
    Wait,
    decide,
)

NOW = 1000.0
DATA, FORWARD, REDUCE, UPDATE = range(len(STAGES))
ERROR = MemberError("ValueError", "a column too many", "Traceback …")
HUNG = Loss("b", FailureClass.HANG, "no step")


def rank(id: str, *, node: str = "n1", **over: Any) -> MemberView:
    """A rank of generation 1 that trains at step 10 and answered just now."""
    report: dict[str, Any] = {
        "state": MemberState.TRAINING, "generation": 1, "rank": ord(id) - ord("a"), "step": 10,
        "stage": REDUCE, "fresh": False, "step_seconds": 0.1,
    }  # fmt: skip
    known = {"heard", "dead", "node_gone", "draining", "ended"}
    report |= {key: value for key, value in over.items() if key not in known}
    view: dict[str, Any] = {"heard": NOW} | {key: value for key, value in over.items() if key in known}
    return MemberView(id, node, Report(**report), **view)


def spare(id: str, **over: Any) -> MemberView:
    return rank(
        id, **{"state": MemberState.READY, "generation": 0, "step": 0, "fresh": True, "stage": 0} | over
    )


def out(id: str, **over: Any) -> MemberView:
    """A rank that has left generation 1."""
    return rank(id, **{"state": MemberState.READY, "stage": 0} | over)


def group(*members: MemberView, ranks: str = "ab", **over: Any) -> GroupView:
    """Ranks a and b of at most 2 and at least 1, whose last step was 0.1 s ago."""
    given: dict[str, Any] = {
        "now": NOW, "workers_min": 1, "workers_max": 2, "generation": 1 if ranks else 0,
        "last_step": 10, "last_step_at": NOW - 0.1, "waiting_since": NOW - 1,
    }  # fmt: skip
    return GroupView(members={m.id: m for m in members}, ranks=tuple(ranks), **given | over)


def breaking(*lost: Loss, seconds: float = 0.1, **over: bool) -> Breaking:
    return Breaking(NOW - seconds, lost, **over)


def lost(id: str, kind: FailureClass = FailureClass.WORKER_CRASH) -> Loss:
    return Loss(id, kind, "gone")


# --- who is fit for a place --------------------------------------------------------------------------
def test_a_spare_that_does_not_answer_takes_no_place() -> None:
    view = group(out("a"), rank("b", dead="killed"), spare("c", heard=NOW - 30), breaking=breaking(lost("b")))
    answer = decide(view)
    assert isinstance(answer, Regroup)
    assert answer.ranks == ("a",)


def test_a_promoted_process_that_froze_is_the_one_that_hangs_and_not_the_survivor() -> None:
    survivor = rank("a", state=MemberState.FORMING, generation=2, stage=0)
    frozen = spare("b", heard=NOW - 20)
    answer = decide(group(survivor, frozen, generation=2, last_step_at=NOW - 20))
    assert isinstance(answer, Break)
    assert [loss.member for loss in answer.lost] == ["b"]


def test_the_first_step_of_a_new_process_may_take_long() -> None:
    newcomer = rank("b", step_seconds=None, stage=DATA)
    assert decide(group(rank("a"), newcomer, last_step_at=NOW - 20)) == Keep("Training")
    assert isinstance(decide(group(rank("a"), newcomer, last_step_at=NOW - 61)), Break)


def test_a_hang_that_nobody_can_be_blamed_for_is_not_retried_for_ever() -> None:
    view = group(rank("a"), rank("b"), last_step_at=NOW - 61, charged=3)
    answer = decide(view)
    assert isinstance(answer, Fail)
    assert answer.failure_class is FailureClass.HANG


# --- training ----------------------------------------------------------------------------------------
def test_ranks_that_make_steps_are_left_alone() -> None:
    assert decide(group(rank("a"), rank("b"), spare("c"))) == Keep("Training")


def test_an_error_of_the_users_code_fails_at_once_and_names_the_rank() -> None:
    answer = decide(group(rank("a"), rank("b", state=MemberState.RAISED, error=ERROR), spare("c")))
    assert answer == Fail(FailureClass.USER_ERROR, "rank 1: ValueError: a column too many", "b")


def test_an_error_of_the_users_code_in_a_process_without_a_rank_fails_too() -> None:
    answer = decide(group(spare("a", state=MemberState.RAISED, error=ERROR, rank=-1), ranks=""))
    assert isinstance(answer, Fail)
    assert answer.message.startswith("a worker: ValueError")


def test_an_error_of_the_users_code_wins_over_a_rank_that_died_of_it() -> None:
    answer = decide(group(rank("a", dead="killed"), rank("b", state=MemberState.RAISED, error=ERROR)))
    assert isinstance(answer, Fail)
    assert answer.failure_class is FailureClass.USER_ERROR


def test_a_checkpoint_that_no_rank_can_load_is_not_called_an_error_of_the_users_code() -> None:
    error = replace(ERROR, kind="CheckpointCorruptError", failure_class=FailureClass.CHECKPOINT_CORRUPT)
    answer = decide(group(rank("a", state=MemberState.RAISED, error=error), rank("b")))
    assert isinstance(answer, Fail)
    assert answer.failure_class is FailureClass.CHECKPOINT_CORRUPT


def test_a_train_function_without_generations_is_refused_at_once_instead_of_waited_for() -> None:
    answer = decide(group(spare("a", state=MemberState.RETURNED), ranks="", waiting_since=NOW))
    assert isinstance(answer, Fail)
    assert answer.failure_class is FailureClass.USER_ERROR
    assert "steadyray.generations" in answer.message


def test_all_ranks_finished_may_return() -> None:
    done = {"state": MemberState.FINISHED}
    assert decide(group(rank("a", **done), rank("b", **done))) == End()


def test_one_rank_that_has_not_finished_keeps_the_others() -> None:
    assert decide(group(rank("a", state=MemberState.FINISHED), rank("b"))) == Keep("Training")


def test_the_job_is_done_when_rank_zero_has_returned() -> None:
    answer = decide(group(rank("a", state=MemberState.RETURNED, ended=True), rank("b", ended=True)))
    assert answer == Done("a")


# --- losses ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ({"dead": "killed"}, FailureClass.WORKER_CRASH),
        ({"dead": "killed", "node_gone": True}, FailureClass.NODE_LOST),
        ({"dead": "killed", "draining": True}, FailureClass.PREEMPTED),
        ({"dead": "killed", "leaving": True, "node_gone": True}, FailureClass.PREEMPTED),
    ],
    ids=["process", "node", "drained node", "SIGTERM"],
)
def test_a_dead_rank_breaks_the_generation_under_its_own_class(
    over: dict[str, Any], expected: FailureClass
) -> None:
    assert decide(group(rank("a"), rank("b", **over))) == Break((Loss("b", expected, "killed"),), "killed")


def test_two_ranks_dead_at_once_are_one_break() -> None:
    answer = decide(group(rank("a", dead="x"), rank("b", dead="y")))
    assert isinstance(answer, Break)
    assert [loss.member for loss in answer.lost] == ["a", "b"]


def test_a_rank_that_dies_while_the_generation_is_left_is_lost_with_it() -> None:
    answer = decide(group(rank("a", dead="killed"), out("b"), spare("c"), breaking=breaking(lost("b"))))
    assert answer == Lose((Loss("a", FailureClass.WORKER_CRASH, "killed"),))


def test_a_fault_after_so_many_recoveries_without_a_step_ends_the_job_under_its_class() -> None:
    answer = decide(group(rank("a"), rank("b", dead="killed"), charged=3))
    assert isinstance(answer, Fail)
    assert (answer.failure_class, answer.member) == (FailureClass.WORKER_CRASH, "b")
    assert "3 recoveries brought no new step after step 10" in answer.message


def test_a_preempted_rank_costs_no_budget() -> None:
    assert isinstance(decide(group(rank("a"), rank("b", dead="x", draining=True), charged=99)), Break)


def test_a_failed_collective_breaks_the_generation_before_its_reason_is_known() -> None:
    answer = decide(group(out("a", lost_peer="Connection closed by peer"), rank("b")))
    assert answer == Break((), "a collective failed: Connection closed by peer")


def test_collectives_that_keep_failing_end_as_a_network_fault() -> None:
    answer = decide(group(out("a", lost_peer="Connection closed by peer"), rank("b"), charged=3))
    assert isinstance(answer, Fail)
    assert answer.failure_class is FailureClass.NETWORK_FAULT


def test_rank_zero_may_evaluate_after_the_last_step_as_long_as_it_likes() -> None:
    view = group(rank("a", state=MemberState.FINISHED, ended=True), rank("b", ended=True), last_step_at=0.0)
    assert decide(view) == Keep("Finishing")


def test_rank_zero_lost_after_the_last_step_is_replaced() -> None:
    done = {"state": MemberState.FINISHED, "ended": True}
    answer = decide(group(rank("a", dead="killed", **done), rank("b", **done)))
    assert isinstance(answer, Break)
    assert answer.lost[0].member == "a"


def test_rank_zero_that_dies_each_time_after_the_last_step_ends_the_job() -> None:
    done = {"state": MemberState.FINISHED, "ended": True}
    answer = decide(group(rank("a", dead="out of memory", **done), rank("b", **done), charged=3))
    assert isinstance(answer, Fail)


# --- leaving -----------------------------------------------------------------------------------------
def test_a_survivor_inside_a_step_is_waited_for() -> None:
    assert decide(group(rank("a"), rank("b", dead="x"), breaking=breaking(lost("b")))) == Keep("Leaving")


def test_a_survivor_that_stops_to_answer_while_it_leaves_is_lost_as_its_node() -> None:
    view = group(rank("a", heard=NOW - 1.5), rank("b", dead="x"), breaking=breaking(lost("b"), seconds=1.5))
    assert decide(view) == Lose((Loss("a", FailureClass.NODE_LOST, "does not answer"),))


def test_a_survivor_that_was_silent_before_the_break_only_gets_its_full_second_to_answer() -> None:
    view = group(rank("a", heard=NOW - 9), rank("b", dead="x"), breaking=breaking(lost("b"), seconds=0.5))
    assert decide(view) == Keep("Leaving")


def test_a_survivor_that_answers_but_does_not_leave_its_step_is_lost_as_hung() -> None:
    view = group(rank("a"), rank("b", dead="x"), breaking=breaking(lost("b"), seconds=6))
    assert decide(view) == Lose((Loss("a", FailureClass.HANG, "does not leave its step"),))


def test_a_survivor_that_evaluates_gets_the_patience_of_its_phase_to_leave() -> None:
    evaluating = rank("a", phase="eval", patience=60.0)
    view = group(evaluating, rank("b", dead="x"), breaking=breaking(lost("b"), seconds=30))
    assert decide(view) == Keep("Leaving")
    late = replace(view, breaking=breaking(lost("b"), seconds=61))
    assert decide(late) == Lose((Loss("a", FailureClass.HANG, "does not leave its step"),))


def test_a_planned_break_aborts_the_ranks_that_wait_for_one_that_has_left() -> None:
    assert decide(group(rank("a"), out("b"), breaking=breaking(planned=True))) == Abort()


def test_a_planned_break_aborts_the_ranks_that_wait_for_one_that_froze_meanwhile() -> None:
    view = group(rank("a"), rank("b", heard=NOW - 2), breaking=breaking(HUNG, planned=True))
    assert decide(view) == Abort()


def test_a_planned_break_aborts_once() -> None:
    view = group(rank("a"), out("b"), breaking=breaking(planned=True, aborted=True))
    assert decide(view) == Keep("Leaving")


def test_a_planned_break_lets_all_ranks_go_on_to_their_step_boundary() -> None:
    assert decide(group(rank("a"), rank("b"), breaking=breaking(planned=True))) == Keep("Leaving")


# --- regrouping --------------------------------------------------------------------------------------
def test_the_first_group_waits_for_all_workers_until_the_time_to_gather_is_over() -> None:
    view = group(spare("a"), ranks="", enough_since=NOW - 4)
    assert decide(view) == Wait(1, "1 of 2 workers are ready")
    assert isinstance(decide(replace(view, enough_since=NOW - 5)), Regroup)


def test_the_first_group_loads_or_starts_afresh_on_rank_zero() -> None:
    assert decide(group(spare("a"), spare("b"), ranks="")) == Regroup(("a", "b"), None, (1,), Depth.RELOAD, 0)


def test_a_spare_takes_the_lost_rank_and_the_survivor_keeps_its_own() -> None:
    view = group(rank("a", dead="x"), out("b"), spare("c"), breaking=breaking(lost("a")))
    assert decide(view) == Regroup(("c", "b"), 1, (0,), Depth.HOT, 10)


def test_without_a_spare_the_survivors_go_on_alone() -> None:
    view = group(rank("a", dead="x"), out("b"), breaking=breaking(lost("a")))
    assert decide(view) == Regroup(("b",), 0, (), Depth.HOT, 10)


def test_the_rank_with_the_newest_step_is_the_source_and_the_one_behind_receives() -> None:
    view = group(out("a", step=9), out("b", step=10), breaking=breaking())
    assert decide(view) == Regroup(("a", "b"), 1, (0,), Depth.HOT, 10)


def test_a_torn_state_is_no_source_even_if_it_is_the_newest() -> None:
    view = group(out("a", step=9), out("b", step=10, clean=False), breaking=breaking())
    assert decide(view) == Regroup(("a", "b"), 0, (1,), Depth.HOT, 9)


def test_without_a_whole_state_the_group_reloads() -> None:
    torn = {"clean": False}
    view = group(out("a", **torn), out("b", **torn), breaking=breaking())
    assert decide(view) == Regroup(("a", "b"), None, (1,), Depth.RELOAD, 0)


def test_a_rank_that_was_taken_as_lost_and_comes_back_is_not_chosen_in_the_same_break() -> None:
    view = group(out("a"), out("b"), spare("c"), breaking=breaking(HUNG))
    assert decide(view) == Regroup(("a", "c"), 0, (1,), Depth.HOT, 10)


def test_too_few_members_are_waited_for_until_the_patience_for_capacity_is_over() -> None:
    view = group(out("a"), rank("b", dead="x"), breaking=breaking(lost("b")), workers_min=2)
    assert decide(view) == Wait(1, "1 of at least 2 workers are ready")
    long = replace(view, waiting_since=NOW - 300)
    assert isinstance(decide(long), Wait), "under a supervisor the limit is its business"
    answer = decide(replace(long, patience=Patience(capacity=300.0)))
    assert isinstance(answer, Fail)
    assert answer.failure_class is FailureClass.CAPACITY_MISSING


def test_a_rank_that_hands_over_takes_no_place_in_the_next_generation() -> None:
    preempted = lost("b", FailureClass.PREEMPTED)
    view = group(out("a"), out("b", leaving=True), spare("c"), breaking=breaking(preempted, planned=True))
    assert decide(view) == Regroup(("a", "c"), 0, (1,), Depth.HOT, 10)


GOES = Loss("a", FailureClass.PREEMPTED, "the process got SIGTERM")


def test_the_only_rank_is_waited_for_until_it_is_out_with_its_checkpoint() -> None:
    planned = breaking(GOES, planned=True)
    view = group(rank("a", leaving=True), spare("c"), ranks="a", breaking=planned, workers_max=1)
    assert decide(view) == Keep("Leaving")
    saving = rank("a", leaving=True, phase="save", patience=600.0)
    late = breaking(GOES, planned=True, seconds=100)
    view = group(saving, spare("c"), ranks="a", breaking=late, workers_max=1)
    assert decide(view) == Keep("Leaving")
    view = group(out("a", leaving=True), spare("c"), ranks="a", breaking=planned, workers_max=1)
    assert decide(view) == Regroup(("c",), None, (), Depth.RELOAD, 0)


def test_a_rank_that_hands_over_and_falls_silent_is_not_waited_for_for_ever() -> None:
    frozen = rank("a", leaving=True, heard=NOW - 6)
    late = breaking(GOES, planned=True, aborted=True, seconds=6)
    view = group(frozen, spare("c"), ranks="a", breaking=late, workers_max=1)
    answer = decide(view)
    assert isinstance(answer, Lose)
    gone = replace(view, breaking=replace(late, lost=(GOES, *answer.lost)))
    assert decide(gone) == Regroup(("c",), None, (), Depth.RELOAD, 0)


def test_a_rank_that_hands_over_holds_up_nobody_who_is_out_with_the_same_state() -> None:
    planned = breaking(lost("b", FailureClass.PREEMPTED), planned=True)
    view = group(out("a"), rank("b", leaving=True, heard=NOW - 4), spare("c"), breaking=planned)
    assert decide(view) == Regroup(("a", "c"), 0, (1,), Depth.HOT, 10)


def test_who_waits_for_a_rank_that_has_handed_over_is_freed() -> None:
    planned = breaking(lost("b", FailureClass.PREEMPTED), planned=True)
    view = group(rank("a"), out("b", leaving=True), spare("c"), breaking=planned)
    assert decide(view) == Abort()


def test_the_last_holder_of_the_state_that_is_told_to_go_in_a_break_hands_it_on_first() -> None:
    """Both ranks of a node are told to go, and the driver hears of the second a moment later."""
    planned = breaking(GOES, planned=True)
    view = group(out("a", leaving=True), out("b", leaving=True), spare("c"), breaking=planned)
    assert decide(view) == Regroup(("c", "b"), 1, (0,), Depth.HOT, 10)
    then = group(rank("c", generation=2), rank("b", generation=2, leaving=True), ranks="cb", generation=2)
    assert isinstance(decide(then), Break)


def test_a_rank_gets_to_hand_over_where_enough_others_stay() -> None:
    answer = decide(group(rank("a"), rank("b", leaving=True)))
    assert isinstance(answer, Break)
    assert (answer.planned, answer.lost[0].failure_class) == (True, FailureClass.PREEMPTED)


def test_a_rank_that_nobody_can_replace_trains_on_and_the_group_saves_often_until_it_is_ended() -> None:
    assert decide(group(rank("a"), rank("b", draining=True), workers_min=2)) == SaveOften()


def test_a_group_below_its_largest_size_grows_at_a_step_boundary() -> None:
    answer = decide(group(rank("a"), spare("c"), ranks="a"))
    assert answer == Break((), "1 more worker(s) are ready", planned=True)


@pytest.mark.parametrize(
    ("batch", "grows"), [(1, False), (2, True), (0, True)], ids=["full", "room", "unknown"]
)
def test_a_group_grows_to_no_more_ranks_than_the_global_batch_has_samples(batch: int, grows: bool) -> None:
    answer = decide(group(rank("a", samples=batch), spare("c"), ranks="a"))
    assert isinstance(answer, Break if grows else Keep)


def test_a_group_regroups_with_no_more_ranks_than_the_global_batch_has_samples() -> None:
    view = group(out("a", samples=1), spare("c"), ranks="a", breaking=breaking())
    answer = decide(view)
    assert isinstance(answer, Regroup)
    assert answer.ranks == ("a",)


def test_a_planned_break_that_a_slow_rank_holds_up_frees_those_that_wait_for_it() -> None:
    """They hold the newest state; to call them hung with the slow one would throw it away."""
    planned = breaking(planned=True, seconds=6)
    assert decide(group(rank("a"), rank("b", stage=DATA), spare("c"), breaking=planned)) == Abort()


@pytest.mark.parametrize(("seconds", "kept"), [(6, True), (61, False)])
def test_the_first_step_of_a_process_is_not_ended_by_an_abort(seconds: float, kept: bool) -> None:
    """It compiles and loads."""
    first = rank("b", stage=DATA, step_seconds=None)
    view = group(out("a"), first, breaking=breaking(seconds=seconds))
    assert isinstance(decide(view), Keep if kept else Lose)


def test_a_group_does_not_grow_in_the_middle_of_an_evaluation() -> None:
    view = group(rank("a", phase="eval", patience=60.0), spare("c"), ranks="a")
    assert decide(view) == Keep("Training")


# --- hangs -------------------------------------------------------------------------------------------
def quiet(*members: MemberView, seconds: float, **over: Any) -> Answer:
    return decide(group(*members, last_step_at=NOW - seconds, **over))


def test_a_rank_that_all_others_wait_for_is_hung_after_the_floor() -> None:
    behind = rank("b", stage=DATA)
    assert quiet(rank("a"), behind, seconds=4.9) == Keep("Training")
    answer = quiet(rank("a"), behind, seconds=5.0)
    assert isinstance(answer, Break)
    assert [(loss.member, loss.failure_class) for loss in answer.lost] == [("b", FailureClass.HANG)]


def test_slow_steps_raise_the_threshold_to_ten_of_them() -> None:
    slow = {"step_seconds": 2.0}
    assert quiet(rank("a", **slow), rank("b", stage=DATA, **slow), seconds=19) == Keep("Training")
    assert isinstance(quiet(rank("a", **slow), rank("b", stage=DATA, **slow), seconds=20), Break)


def test_each_false_alarm_doubles_the_threshold() -> None:
    assert quiet(rank("a"), rank("b", stage=DATA), seconds=19, false_alarms=2) == Keep("Training")
    assert isinstance(quiet(rank("a"), rank("b", stage=DATA), seconds=20, false_alarms=2), Break)


def test_a_frozen_rank_is_hung_although_it_was_last_seen_in_the_same_collective() -> None:
    answer = quiet(rank("a"), rank("b", heard=NOW - 3), seconds=5)
    assert isinstance(answer, Break)
    assert [loss.member for loss in answer.lost] == ["b"]


def test_a_rank_that_has_been_silent_for_a_moment_only_is_not_unhealthy() -> None:
    assert quiet(rank("a"), rank("b", heard=NOW - 1.9), seconds=5) == Keep("Training")
    assert quiet(rank("a"), rank("b", heard=NOW - 30), seconds=0.5) == Keep("Training")


def test_a_rank_that_computes_while_nobody_waits_for_it_gets_the_long_patience() -> None:
    computing = {"stage": DATA}
    assert quiet(rank("a", **computing), rank("b", **computing), seconds=59) == Keep("Training")
    answer = quiet(rank("a", **computing), rank("b", **computing), seconds=60)
    assert isinstance(answer, Break)
    assert answer.lost == ()


def test_a_lone_rank_is_named_after_the_long_patience() -> None:
    answer = quiet(rank("a", stage=DATA), ranks="a", seconds=60)
    assert isinstance(answer, Break)
    assert [loss.member for loss in answer.lost] == ["a"]


@pytest.mark.parametrize("seconds", [6.0, 61.0, 599.0])
def test_a_phase_is_excused_for_as_long_as_it_was_granted(seconds: float) -> None:
    evaluating = rank("b", stage=DATA, phase="eval", patience=600.0)
    assert quiet(rank("a"), evaluating, seconds=seconds) == Keep("Training")


def test_a_phase_beyond_its_patience_is_a_hang() -> None:
    answer = quiet(rank("a"), rank("b", stage=DATA, phase="eval", patience=60.0), seconds=60)
    assert isinstance(answer, Break)
    assert [loss.member for loss in answer.lost] == ["b"]


def test_after_a_long_phase_the_first_step_gets_the_usual_time() -> None:
    behind = rank("b", stage=DATA)
    assert quiet(rank("a"), behind, seconds=100, phase_at=NOW - 4.9) == Keep("Training")
    assert isinstance(quiet(rank("a"), behind, seconds=100, phase_at=NOW - 5), Break)


def test_a_step_that_hangs_on_two_nodes_is_the_codes_fault() -> None:
    answer = quiet(rank("a"), rank("b", stage=DATA, node="n2"), seconds=6, hangs=((10, "n1"),))
    assert isinstance(answer, Fail)
    assert answer.failure_class is FailureClass.USER_ERROR
    assert "step 11 hung on 2 different nodes" in answer.message


@pytest.mark.parametrize(
    "earlier", [(10, "n2"), (9, "n1")], ids=["the same node again", "another step on another node"]
)
def test_another_hang_elsewhere_is_the_machines_fault(earlier: tuple[int, str]) -> None:
    answer = quiet(rank("a"), rank("b", stage=DATA, node="n2"), seconds=6, hangs=(earlier,))
    assert isinstance(answer, Break)


def test_a_hang_without_a_suspect_blames_no_second_node() -> None:
    answer = quiet(rank("a"), rank("b"), seconds=60, hangs=((10, "n1"),))
    assert isinstance(answer, Break)


# --- whatever the group looks like -------------------------------------------------------------------
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
