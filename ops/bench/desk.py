"""The one cluster of a benchmark and the trainings on it: start, find their processes, wait, clean up.

Everything waits on conditions. What is not there in time raises Broken, which costs one measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ops import packing, profile, render
from ops.adapters import local_cluster
from ops.adapters.clusters import WORKER_RESOURCE, LocalMaker
from ops.adapters.local_cluster import ClusterConnection
from ops.adapters.local_processes import MARKER
from ops.bench.trace import Mark, parse
from ops.config import home
from ops.errors import OpsError, ServerError, UnreachableError
from ops.policy.model import JobStatus
from ops.ports import JobRequest

SCRIPTS = render.CLUSTER_FOLDER.parent / "training_image" / "bench"
CLUSTER = "bench"
READY_SECONDS = 240.0
"""Patience for a training that starts or becomes whole again, and for nodes that come back."""
LOOK_SECONDS = 0.02
T = TypeVar("T")


class Broken(OpsError):
    """A measurement could not be made; says nothing about the system that was to be measured."""


def wait_for(what: Callable[[], T | None], name: str, seconds: float = READY_SECONDS) -> T:
    """The first true answer of `what`. Raises Broken with `name` when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := what():
            return answer
        time.sleep(LOOK_SECONDS)
    raise Broken(f"not within {seconds:.0f} s: {name}")


def bench_profile(name: str, nodes: int) -> profile.Profile:
    """The profile `local` with so many nodes of one CPU that stay, on free ports."""
    over = {
        "name": name,
        "head": {"gcs_port": 0, "dashboard_port": 0},
        "groups": {"cpu": {"min": nodes, "max": nodes, "cpus": 1}, "gpu": {"max": 0}},
        "idle_seconds": 3600,
        "job_stop_seconds": 3,
    }
    return profile.load(render.profile_path("local"), over)


@contextlib.contextmanager
def own_home() -> Iterator[None]:
    """Clusters and runs of a benchmark lie apart from those of its user."""
    before, mine = os.environ.get("STEADYRAY_HOME"), home() / "bench"
    os.environ["STEADYRAY_HOME"] = str(mine)
    try:
        yield
    finally:
        if before is None:
            del os.environ["STEADYRAY_HOME"]
        else:
            os.environ["STEADYRAY_HOME"] = before


@contextlib.contextmanager
def cluster(nodes: int, name: str = CLUSTER) -> Iterator[ClusterConnection]:
    """A cluster that is gone afterwards. One that an earlier, killed benchmark left is ended first."""
    local_cluster.down(name)
    try:
        yield local_cluster.up(bench_profile(name, nodes))
    finally:
        local_cluster.down(name)


@dataclass
class Training:
    """One training on a cluster, by what it writes into its folder and by its processes."""

    folder: Path
    at: ClusterConnection
    run: str
    command: subprocess.Popen[bytes] | None = None
    """`steadyray job run`; None for a job that was only submitted."""
    seen: set[int] = field(default_factory=set)

    # --- what it says ---
    def marks(self) -> list[Mark]:
        return parse(self._read("steps"))

    def result(self) -> float | None:
        words = self._read("result").split()
        return float(words[1]) if len(words) > 1 else None

    def ranks(self) -> dict[int, int]:
        """Process id of each rank, the newest of each."""
        lines = [line.split() for line in self._read("ranks").splitlines()]
        self.seen |= {int(pid) for _, _, pid in lines}
        return {int(rank): int(pid) for _, rank, pid in lines}

    def driver(self) -> int | None:
        lines = self._read("driver").splitlines()
        return int(lines[-1].split()[1]) if lines else None

    def driver_after(self, fault: float) -> float | None:
        """When a driver started after `fault`; None as long as none has."""
        times = [float(line.split()[0]) for line in self._read("driver").splitlines()]
        return next((time for time in times if time > fault), None)

    def progress(self) -> dict[str, Any]:
        """What this library's driver reports; empty for a peer."""
        # not `glob`, which fails where a checkpoint is pruned while it descends
        found = [
            Path(at, "progress.json") for at, _, files in os.walk(self.folder) if "progress.json" in files
        ]
        for path in sorted(p for p in found if p.parent.parent.name == "attempts")[-1:]:
            with contextlib.suppress(OSError, ValueError):
                return dict(json.loads(path.read_text()))
        return {}

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return ""

    # --- how it stands ---
    def failed(self) -> bool:
        """Whether it has ended for good; an unreachable head says nothing."""
        if self.command is not None:
            return self.command.poll() is not None
        try:
            job = LocalMaker(self.at.name).connect().job(self.run)
        except (UnreachableError, ServerError):
            return False
        return job is not None and job.status in (JobStatus.FAILED, JobStatus.STOPPED)

    def alive(self, pid: int) -> bool:
        """Whether a process of this cluster runs: neither gone nor a zombie, and not frozen."""
        dead = {psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED}
        return node_of(pid) is not None and psutil.Process(pid).status() not in dead

    # --- its end ---
    def close(self) -> None:
        """End command, driver and ranks, in this order, or the job would be tried again."""
        if self.command is not None and self.command.poll() is None:
            os.killpg(self.command.pid, signal.SIGKILL)
            self.command.wait()
        ranks = {*self.ranks().values(), *self.seen}
        for pid in filter(None, [self.driver(), *ranks]):
            if node_of(pid) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(node_of(pid) for pid in ranks), "an end of the ranks")


def node_of(pid: int) -> str | None:
    """Instance id of the node of a living process, from the marker in its environment."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.environ().get(MARKER, "").partition("/")[2] or None
    return None


def supervised(at: ClusterConnection, folder: Path, *command: str) -> Training:
    """A training under `steadyray job run`."""
    folder.mkdir(parents=True)
    run = folder.name
    words = ["job", "run", "--cluster", at.name, "--name", run, "--env", f"BENCH_FOLDER={folder}"]
    with (folder / "command.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ops.cli", *words, "--", *command],
            cwd=SCRIPTS,
            env={**os.environ, "STEADYRAY_RUNS": str(folder / "runs")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Training(folder, at, run, process)


def submitted(
    at: ClusterConnection, folder: Path, *command: str, environment: dict[str, str] | None = None
) -> Training:
    """A training as a plain job, with its driver on a worker node as `steadyray job run` puts it."""
    folder.mkdir(parents=True)
    maker = LocalMaker(at.name)
    client = maker.connect()
    package = packing.pack(SCRIPTS)
    uri = client.upload_package(f"_ray_pkg_{package.code_hash[:32]}.zip", package.data)
    variables = {**maker.environment(), **(environment or {}), "BENCH_FOLDER": str(folder)}
    client.submit(
        JobRequest(
            submission_id=folder.name,
            entrypoint="exec " + shlex.join(command),
            runtime_env={"working_dir": uri, "env_vars": variables},
            resources=dict(WORKER_RESOURCE),
        )
    )
    return Training(folder, at, folder.name)


def nodes_alive(at: ClusterConnection) -> int:
    """Worker nodes that the head takes as alive; 0 while it does not answer."""
    try:
        return sum(node.alive and not node.is_head for node in LocalMaker(at.name).connect().nodes())
    except (UnreachableError, ServerError):
        return 0


def wait_for_nodes(at: ClusterConnection, count: int) -> None:
    """So many living nodes by the head *and* by the provider's files: the head notices a loss late."""

    def whole() -> bool:
        return local_cluster.ready_nodes(at.name, "cpu") == count and nodes_alive(at) == count

    wait_for(whole, f"{count} nodes")
