"""Trainings on real Ray, hurt on purpose: each runs in a driver process of its own with a Ray of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

HOLD_AT = 15
"""Step at which a training waits for the test, so that a slow machine does not end it before it is hurt."""

DRIVER = Path(__file__).with_name("hurt_driver.py")
PATIENCE_SECONDS = 150.0
"""For whatever the tests wait for; several Ray clusters may share two cores."""


@dataclass
class Training:
    """One running driver and its run directory."""

    root: Path
    process: subprocess.Popen[str]

    def progress(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.root / "attempts/0001/progress.json").read_text()))
        except (OSError, ValueError):
            return {"step": 0, "ranks": [], "spares": 0, "world_size": 0, "generation": 0}

    def wait_for(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first progress that `what` is true of; fails when the training ends before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if what(progress := self.progress()):
                return progress
            time.sleep(0.02)
        raise AssertionError(f"never came: {self.progress()}\n{self.output()[-6000:]}")

    def pids(self, progress: dict[str, Any]) -> dict[int, int]:
        return {rank["rank"]: rank["pid"] for rank in progress["ranks"]}

    @property
    def gate(self) -> Path:
        """The training pauses at step HOLD_AT until this file is there."""
        return self.root.with_suffix(".go")

    def ready(self, spares: int = 1) -> dict[int, int]:
        """Pids by rank once so many spares are warm and steps are being made again."""
        self.wait_for(lambda p: p["step"] >= HOLD_AT and p["spares"] >= spares)
        self.gate.touch()
        return self.pids(self.wait_for(lambda p: p["step"] > HOLD_AT))

    def signal_rank(self, rank: int, number: signal.Signals, *, spares: int = 1) -> None:
        os.kill(self.ready(spares)[rank], number)

    def finish(self) -> dict[str, Any]:
        """Wait for the end; the result that the driver printed. Fails where it did not succeed."""
        self.gate.touch()
        output = self.output()
        assert self.process.returncode == 0, output[-6000:]
        lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
        return dict(json.loads(lines[-1].removeprefix("RESULT ")))

    def finish_run(self) -> dict[str, Any]:
        """As `finish`, for a supervised run: its result line is in the driver's log."""
        output = self.output()
        assert self.process.returncode == 0, output[-6000:]
        log = (self.root / "attempts/0001/evidence/driver.log").read_text()
        lines = [line for line in log.splitlines() if line.startswith("RESULT ")]
        return dict(json.loads(lines[-1].removeprefix("RESULT ")))

    def output(self) -> str:
        self.gate.touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_SECONDS)
        if self.process.poll() is None:
            self.end()
        return self.root.with_suffix(".log").read_text()

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in sorted(self.root.glob("events/*/*.json"))]
        return [event for event in found if event["kind"] == kind]

    def losses(self) -> dict[int, float]:
        """The loss of every step, by step; the last one where a step was done twice."""
        return {
            int(step): loss for event in self.events("StepsDone") for step, loss in event["data"]["losses"]
        }

    def recovered(self) -> list[dict[str, Any]]:
        return [dict(e["data"]) for e in self.events("Recovered") if not e["data"]["false_alarm"]]

    def end(self) -> None:
        """End the driver and everything that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = [psutil.Process(self.process.pid)]
            processes += processes[0].children(recursive=True)
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()


StartTraining = Callable[..., Training]


@pytest.fixture
def start_training(tmp_path: Path) -> Iterator[StartTraining]:
    """`start_training(steps=200, spares=1, ...)` starts hurt_driver.py with these settings."""
    started: list[Training] = []

    def start(*, name: str = "run", **settings: Any) -> Training:
        root = tmp_path / name
        settings = {"hold": [HOLD_AT, str(root.with_suffix(".go"))], **settings}
        environment = {
            **os.environ,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_kill_worker_timeout_milliseconds": "300",
            "STEADYRAY_RUN_DIR": str(root),
        }
        with root.with_suffix(".log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(settings)],
                env=environment, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        started.append(Training(root, process))
        return started[-1]

    yield start
    for training in started:
        training.end()
