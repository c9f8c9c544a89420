"""Faults that no recovery mends: the user's code raises, exits, or cannot be imported."""

from __future__ import annotations

import json
import signal

import pytest

from .conftest import StartTraining

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


def test_sys_exit_on_one_rank_is_a_user_error_with_that_exit_code(start_training: StartTraining) -> None:
    training = start_training(steps=150, fault="exit", at=30)
    training.output()
    failure = json.loads((training.root / "attempts/0001/failure.json").read_text())
    assert (failure["failure_class"], failure["exit_code"]) == ("UserError", 3)


def test_recoveries_that_bring_no_new_step_end_the_job(start_training: StartTraining) -> None:
    training = start_training(steps=150, spares=0, workers=[2, 2], patience={"charged": 1, "capacity": 30})
    for _ in range(2):
        ready = training.wait_for(lambda p: p["step"] >= 15 and p["world_size"] == 2 and len(p["ranks"]) == 2)
        training.signal_rank(1, signal.SIGKILL, spares=0)
        training.wait_for(lambda p, g=ready["generation"]: p["generation"] > g)
    training.finish()
    assert all(r["steps_redone"] == 0 for r in training.recovered())
