"""Faults that no recovery mends: the user's code raises, exits, or cannot be imported."""

from __future__ import annotations

import json
import os
import signal

import pytest

from .conftest import HOLD_AT, StartTraining

pytestmark = pytest.mark.ray


def test_an_exception_on_one_rank_ends_the_job_at_once_with_its_traceback(
    start_training: StartTraining,
) -> None:
    training = start_training(steps=150, fault="raise", at=30)
    output = training.output()
    assert training.process.returncode != 0
    failure = json.loads((training.root / "attempts/0001/failure.json").read_text())
    assert failure["failure_class"] == "UserError"
    assert failure["rank"] == 1
    assert "the batch has a column too many" in failure["message"]
    assert "go_wrong" in failure["traceback"], output[-3000:]
    assert training.events("Recovered") == []


def test_a_state_that_the_user_s_code_cannot_load_is_a_user_error_and_no_fault_of_the_network(
    start_training: StartTraining,
) -> None:
    training = start_training(steps=150, unloadable=True)
    training.output()
    failure = json.loads((training.root / "attempts/0001/failure.json").read_text())
    assert failure["failure_class"] == "UserError"
    assert "size mismatch for head.weight" in failure["message"]
    assert training.events("Recovered") == []


def test_sys_exit_on_one_rank_is_a_user_error_with_that_exit_code(start_training: StartTraining) -> None:
    training = start_training(steps=150, fault="exit", at=30)
    training.output()
    failure = json.loads((training.root / "attempts/0001/failure.json").read_text())
    assert (failure["failure_class"], failure["exit_code"]) == ("UserError", 3)


def test_recoveries_that_bring_new_steps_are_not_counted_against_the_job(
    start_training: StartTraining,
) -> None:
    """With a budget of one charged recovery in a row, two losses with steps between them are survived."""
    training = start_training(steps=600, spares=1, workers=[2, 2], patience={"charged": 1, "capacity": 100})
    training.signal_rank(1, signal.SIGKILL)
    after = training.wait_for(lambda p: p["generation"] == 2 and p["step"] > HOLD_AT + 20)
    os.kill(training.pids(after)[0], signal.SIGKILL)
    training.finish()
    assert [r["steps_redone"] for r in training.recovered()] == [0, 0]
