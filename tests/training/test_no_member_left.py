"""Below the smallest world size with no spare at hand: a new process is started, and the job goes on."""

from __future__ import annotations

import os
import signal

import pytest

from .conftest import StartTraining

pytestmark = pytest.mark.ray

STEPS = 200


def test_a_killed_rank_of_a_fixed_world_size_without_a_spare_is_started_anew_and_no_step_is_redone(
    start_training: StartTraining,
) -> None:
    training = start_training(steps=STEPS, workers=[2, 2], spares=0)
    training.signal_rank(1, signal.SIGKILL, spares=0)
    assert training.finish()["seen"] == STEPS
    [recovery] = training.recovered()
    assert (recovery["depth"], recovery["steps_redone"], recovery["world_size"]) == ("hot", 0, 2)


def test_all_ranks_killed_without_a_spare_go_on_from_the_checkpoint_in_new_processes(
    start_training: StartTraining,
) -> None:
    training = start_training(steps=STEPS, workers=[2, 2], spares=0)
    pids = training.ready(spares=0)
    training.wait_for(lambda p: p["step"] >= 45 and p["checkpoint_step"])
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert training.finish()["seen"] == STEPS
    assert "reload" in [recovery["depth"] for recovery in training.recovered()]
