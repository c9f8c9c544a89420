"""The recipes that ship, as a user runs them: supervised, on a real cluster, to a model that predicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.adapters.local_cluster import ClusterConnection

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

RECIPES = Path(__file__).parents[2] / "training_image" / "recipes"


@pytest.fixture(scope="module")
def steadyray(
    make_cluster: Callable[..., ClusterConnection], steadyray_home: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, on a cluster of three nodes."""
    cluster = make_cluster({"groups": {"cpu": {"min": 3}}})

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        filled = [word.replace("CLUSTER", cluster.name) for word in words]
        return subprocess.run(
            [sys.executable, "-m", "ops.cli", *filled],
            env={**os.environ, "STEADYRAY_HOME": str(steadyray_home)}, capture_output=True, text=True,
        )  # fmt: skip

    return command


def result_of(home: Path, run: str) -> dict[str, Any]:
    """What the training printed last, from the saved log of its driver."""
    log = (home / "runs" / run / "attempts/0001/evidence/driver.log").read_text()
    return dict(json.loads([line for line in log.splitlines() if line.startswith("{")][-1]))


def test_digits_reads_97_percent_of_the_held_out_images(
    steadyray: Callable[..., subprocess.CompletedProcess[str]], steadyray_home: Path
) -> None:
    recipe = str(RECIPES / "digits.yaml")
    ran = steadyray("job", "run", "--cluster", "CLUSTER", "--name", "digits", recipe, "step_seconds=0")
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert result_of(steadyray_home, "digits")["test_accuracy"] >= 0.97


def test_the_tutorial_keeps_the_candidate_with_the_lowest_validation_loss(
    steadyray: Callable[..., subprocess.CompletedProcess[str]], steadyray_home: Path
) -> None:
    recipe = str(RECIPES / "tutorial.yaml")
    ran = steadyray("job", "run", "--cluster", "CLUSTER", "--name", "tutorial", recipe)
    assert ran.returncode == 0, ran.stderr[-3000:]
    log = (steadyray_home / "runs/tutorial/attempts/0001/evidence/driver.log").read_text()
    losses = {
        int(line.split()[1].rstrip(":")): float(line.split()[-1])
        for line in log.splitlines()
        if line.startswith("candidate ")
    }
    result = result_of(steadyray_home, "tutorial")
    assert len(losses) == 4
    assert result["best_candidate"] == min(losses, key=lambda seed: losses[seed])
    assert result["test_loss"] < 0.1
    predicted = steadyray("job", "predict", "tutorial", "-o", "json")
    assert predicted.returncode == 0, predicted.stderr
