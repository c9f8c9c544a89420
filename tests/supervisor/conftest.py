"""Runs of the real command against real clusters, each in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ops.adapters.local_cluster import ClusterConnection

PATIENCE_SECONDS = 120.0
"""For whatever the tests wait for; several Ray clusters may share two cores."""


def wait_for(what: Callable[[], Any], name: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true answer of `what`; fails with `name` if there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := what():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:.0f} s: {name}")


@dataclass
class Desk:
    """A person at a terminal: a working folder, a cluster, the command."""

    folder: Path
    home: Path
    cluster: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def script(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ops.cli", *words],
            cwd=self.folder,
            env={**os.environ, "STEADYRAY_HOME": str(self.home), "COLUMNS": "200", **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *words: str, seconds: float = PATIENCE_SECONDS) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def job(self, name: str, *options: str) -> tuple[str, ...]:
        """Words of `job run` for a script; the command follows."""
        return ("job", "run", "--cluster", self.cluster, "--name", name, *options, "--", "python")

    def directory(self, run: str) -> Path:
        return self.home / "runs" / run

    def read(self, run: str, path: str) -> dict[str, Any]:
        """A record of a run; empty as long as it is not there or not whole."""
        try:
            value: dict[str, Any] = json.loads((self.directory(run) / path).read_text())
        except (OSError, ValueError):
            return {}
        return value

    def events(self, run: str, kind: str) -> list[dict[str, Any]]:
        found = [json.loads(p.read_text()) for p in sorted((self.directory(run) / "events").glob("*/*.json"))]
        return sorted((e for e in found if e["kind"] == kind), key=lambda e: float(e["time"]))

    def attempts(self, run: str) -> int:
        return len(list((self.directory(run) / "attempts").glob("*/lease.json")))

    def wait_text(self, path: Path, text: str) -> None:
        wait_for(lambda: path.exists() and text in path.read_text(), f"{text!r} in {path}")

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="session")
def shared_cluster(make_cluster: Callable[..., ClusterConnection]) -> ClusterConnection:
    """One cluster for all tests that do not harm it: two nodes that stay, two more on demand."""
    return make_cluster({"groups": {"cpu": {"min": 2}}, "job_stop_seconds": 2})


@pytest.fixture
def desk(tmp_path: Path, steadyray_home: Path, shared_cluster: ClusterConnection) -> Iterator[Desk]:
    made = Desk(tmp_path, steadyray_home, shared_cluster.name)
    yield made
    made.close()


CHECKPOINTING = '''
"""A plain script that resumes: one verified checkpoint a step, as any framework could write them."""
import json, os, pathlib, sys, time

run = pathlib.Path(os.environ["STEADYRAY_RUN_DIR"])
attempt = int(os.environ["STEADYRAY_ATTEMPT"])
resume = os.environ["STEADYRAY_RESUME_FROM"]
step = json.loads((pathlib.Path(resume) / "MANIFEST.json").read_text())["step"] if resume else 0
print(f"attempt {attempt} begins after step {step} pid {os.getpid()}", flush=True)
with open(run / "trace.txt", "a") as trace:
    trace.write(f"{attempt} {step} {os.getpid()}\\n")
while step < int(sys.argv[1]):
    time.sleep(0.1)
    step += 1
    folder = run / "checkpoints" / f"{step:010d}-{attempt:04d}-0001"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(str(step))
    files = {"state": {"bytes": len(str(step)), "sha256": ""}}
    record = {"step": step, "attempt": attempt, "generation": 1, "files": files}
    (folder / "MANIFEST.tmp").write_text(json.dumps(record))
    (folder / "MANIFEST.tmp").rename(folder / "MANIFEST.json")
    progress = run / "attempts" / f"{attempt:04d}" / "progress.json"
    mine = progress.with_name("progress.tmp")
    seen = {"step": step, "step_seconds": 0.1, "checkpoint_step": step, "attempt": attempt}
    mine.write_text(json.dumps(seen))
    mine.rename(progress)
    gate = run / "gate"
    while gate.exists() and step >= int(gate.read_text() or 0):
        time.sleep(0.05)
print("done at", step)
'''


@pytest.fixture
def checkpointing(desk: Desk) -> str:
    return desk.script("train.py", CHECKPOINTING)


def driver_of(desk: Desk, run: str, attempt: int) -> int:
    """Process id of the command that an attempt became."""
    record = wait_for(lambda: desk.read(run, f"attempts/{attempt:04d}/started.json"), "a started driver")
    return int(record["pid"])
