"""The driver's decisions, without Ray: each rule on small groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from steadyray.contract import Depth, FailureClass
from steadyray.messages import MemberState
from steadyray.recovery import (
    Abort,
    Break,
    Done,
    End,
    Fail,
    Keep,
    Lose,
    Loss,
    Patience,
    Regroup,
    Wait,
    decide,
)

from .groups import DATA, ERROR, HUNG, NOW, breaking, group, lost, out, rank, spare


# --- who is fit for a place --------------------------------------------------------------------------
def test_a_spare_that_does_not_answer_takes_no_place() -> None:
    view = group(out("a"), rank("b", dead="killed"), spare("c", heard=NOW - 30), breaking=breaking(lost("b")))
    answer = decide(view)
    assert isinstance(answer, Regroup)
    assert answer.ranks == ("a",)


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
