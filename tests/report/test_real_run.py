"""Ledger and report of a real run: two ranks on a real cluster, one of them killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from steadyray.contract import Event

from ops.adapters.local_cluster import ClusterConnection
from ops.policy.ledger import Category, ledger

STEPS = 160

SCRIPT = f"""
import time
import steadyray


def train(config):
    import torch

    torch.manual_seed(0)
    x = torch.randn(512, 10)
    y = x.sum(1, keepdim=True)
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = steadyray.Sampler(512, 64, steps={STEPS})
    state = steadyray.State(model=model, optimizer=optimizer, sampler=sampler)
    for generation in steadyray.generations(state):
        with generation:
            ddp = generation.wrap(model)
            for step in generation.steps(sampler):
                optimizer.zero_grad()
                for indices in step.micro_batches(64):
                    step.backward(((ddp(x[indices]) - y[indices]) ** 2).sum())
                optimizer.step()
                time.sleep(0.05)
                step.commit()
    return {{"test_accuracy": 0.5}}


if __name__ == "__main__":
    steadyray.run(train, workers=(1, 2), spares=1)
"""


def kill_rank_1(run_dir: Path, process: subprocess.Popen[str]) -> float:
    """SIGKILL the second rank once some steps are done; returns the wall clock time of the fault."""
    while process.poll() is None:
        try:
            progress = json.loads((run_dir / "attempts/0001/progress.json").read_text())
        except (OSError, ValueError):
            progress = {"step": 0, "ranks": []}
        if progress["step"] >= 20 and len(progress["ranks"]) == 2:
            os.kill(progress["ranks"][1]["pid"], signal.SIGKILL)
            return time.time()
        time.sleep(0.05)
    raise AssertionError(f"the run ended before it was hurt: {process.communicate()}")


@pytest.mark.ray
def test_the_report_of_a_real_run_with_a_killed_worker_accounts_for_all_of_it(
    make_cluster: Callable[..., ClusterConnection], steadyray_home: Path, tmp_path: Path
) -> None:
    cluster = make_cluster({"groups": {"cpu": {"min": 2}}})
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["job", "run", "--cluster", cluster.name, "--name", "hurt", "--", "python", "train.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.cli", *words],
        cwd=tmp_path,
        env={**os.environ, "STEADYRAY_HOME": str(steadyray_home), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run_dir = steadyray_home / "runs" / "hurt"
    began = time.time()
    try:
        hurt_at = kill_rank_1(run_dir, process)
        screen, told = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, told

    events = [Event.from_json(json.loads(p.read_text())) for p in (run_dir / "events").glob("*/*.json")]
    book = ledger(events)
    (cost,) = book.incidents
    assert (cost.incident.failure_class, cost.incident.depth) == ("WorkerCrash", "hot")
    assert cost.steps_lost == book.steps_redone == 0
    assert (book.steps, book.timeline.state) == (STEPS, "Succeeded")
    assert abs(cost.incident.fault_time - hurt_at) < 5
    assert cost.recovery_seconds is not None
    spent = cost.seconds[Category.DETECTION] + cost.seconds[Category.RESTART]
    assert 0 < spent <= cost.recovery_seconds + 1
    assert sum(book.seconds.values()) == pytest.approx(book.total_seconds)
    assert book.total_seconds <= time.time() - began + 1
    assert book.seconds[Category.PRODUCTIVE] >= STEPS * 0.05 * 0.9
    assert book.seconds[Category.UNMEASURED] == 0

    assert_shown(screen, told, run_dir)


def assert_shown(screen: str, told: str, run_dir: Path) -> None:
    """What a person gets to see: lines on the way, the screen at the end, the page."""
    assert "hurt: Running, attempt 1" in told
    assert "a worker process died" in screen
    assert "report.html" in screen.replace("\n", "")
    page: Any = (run_dir / "report.html").read_text()
    assert "no steps had to be done again" in page
    assert "50.0%" in page
