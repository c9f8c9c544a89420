"""`make demo` is the first thing a new user sees: it is run here as it is, on a home of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from steadyray import contract

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home whose clusters are ended whatever happens."""
    yield tmp_path
    env = {**os.environ, "STEADYRAY_HOME": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-m", "ops.cli", "cluster", "down", "--name", "demo"], env=env, check=True
    )


@pytest.fixture
def demo(home: Path) -> subprocess.Popen[str]:
    """The demonstration, as started by `make demo` in a terminal: interrupts reach it."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts/demo.py")],
        env={**os.environ, "STEADYRAY_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _left(home: Path) -> list[str]:
    """Command lines of processes that have this home in their environment, as all of a cluster's have."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(home) in value for value in process.environ().values()):
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _clusters(home: Path) -> list[Path]:
    return list((home / "clusters").glob("*/cluster.json"))


@pytest.mark.timeout(900)
def test_the_demonstration_survives_its_four_faults_and_leaves_nothing_behind(
    demo: subprocess.Popen[str], home: Path
) -> None:
    output, _ = demo.communicate()
    assert demo.returncode == 0, output
    for harm in ("processes of the node of rank", "(SIGKILL)", "(SIGSTOP)", "processes of the head"):
        assert harm in output
    run = next((home / "runs").glob("[!_]*"))
    assert json.loads((run / contract.RESULT).read_text())["state"] == "Succeeded"
    assert (run / "report.html").stat().st_size > 10_000
    assert _accuracy(run) >= 0.97
    assert _left(home) == []
    assert _clusters(home) == []


def _accuracy(run: Path) -> float:
    events = [json.loads(path.read_text()) for path in run.glob("events/*/*.json")]
    finished = next(event for event in events if event["kind"] == contract.EventKind.TRAINING_FINISHED)
    return float(finished["data"]["metrics"]["test_accuracy"])


@pytest.mark.timeout(600)
def test_a_demonstration_that_is_interrupted_in_the_middle_leaves_nothing_behind(
    demo: subprocess.Popen[str], home: Path
) -> None:
    while not any((home / "runs").glob("*/attempts/*/progress.json")):
        assert demo.poll() is None, demo.communicate()[0]
        time.sleep(0.2)
    os.kill(demo.pid, signal.SIGINT)
    output, _ = demo.communicate()
    assert demo.returncode == 130, output
    assert "attach again" not in output, "it is stopped, so nobody is told how to come back to it"
    run = next((home / "runs").glob("[!_]*"))
    assert json.loads((run / contract.RESULT).read_text())["state"] == "Stopped", output
    assert _left(home) == []
    assert _clusters(home) == []
