"""The driver's decisions about ranks that make no steps: who is hung, since when, and who is only slow."""

from __future__ import annotations

import pytest
from steadyray.contract import FailureClass
from steadyray.messages import MemberState
from steadyray.recovery import Break, Fail, Keep, decide

from .groups import DATA, NOW, group, quiet, rank, spare


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
