"""Ray Train scripts without a changed line: their reports are progress, and a bug is not tried for ever."""

from __future__ import annotations

import json

import pytest

from conftest import Desk

SCRIPT = """
import os, time
from ray import train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def loop(config):
    flag = os.environ["STEADYRAY_RUN_DIR"] + "/once"
    for step in range(1, 13):
        time.sleep(0.1)
        if step == 5 and train.get_context().get_world_rank() == 1 and {when}:
            open(flag, "w").close()
            raise ValueError("the batch has a column too many")
        train.report({{"step": step, "loss": 1.0 / step, "note": "text"}})

TorchTrainer(
    loop,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name="mine", storage_path=os.environ["STEADYRAY_RUN_DIR"] + "/ray-train",
        failure_config=FailureConfig(max_failures=20),
    ),
).fit()
"""


@pytest.mark.ray
def test_reports_are_progress_and_an_exception_that_ray_train_gets_over_ends_nothing(desk: Desk) -> None:
    script = desk.script("train.py", SCRIPT.format(when="not os.path.exists(flag)"))
    seen = desk.run(*desk.job("ray-train"), script, seconds=280)
    assert seen.returncode == 0, seen.stderr
    progress = desk.read("ray-train", "attempts/0001/progress.json")
    assert (progress["world_size"], progress["generation"]) == (2, 2)
    assert progress["step"] >= 8, "written once a second"
    assert progress["loss"] == pytest.approx(1.0 / progress["step"])
    [raised] = desk.read("ray-train", "attempts/0001/exceptions.json")["exceptions"]
    assert (raised["rank"], raised["kind"], raised["step"]) == (1, "ValueError", 4)


@pytest.mark.ray
def test_a_bug_that_ray_train_would_try_twenty_times_ends_the_run_at_its_second(desk: Desk) -> None:
    script = desk.script("train.py", SCRIPT.format(when="True"))
    seen = desk.run(*desk.job("ray-train-bug"), script, seconds=280)
    assert seen.returncode == 1, seen.stderr
    result = desk.read("ray-train-bug", "result.json")
    assert (result["state"], result["failure_class"], result["attempt"]) == ("Failed", "UserError", 1)
    assert "the batch has a column too many" in result["message"]
    raised = desk.read("ray-train-bug", "attempts/0001/exceptions.json")["exceptions"]
    assert 2 <= len(raised) <= 4, json.dumps(raised)
