"""The driver's decisions about ranks that were told to go: they hand their state over first."""

from __future__ import annotations

from dataclasses import replace

from steadyray.contract import Depth, FailureClass
from steadyray.recovery import Abort, Break, Keep, Lose, Loss, Regroup, SaveOften, decide

from .groups import NOW, breaking, group, lost, out, rank, spare


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
