"""Memory as PSS, which counts a page that several processes share once: idle nodes, a training, the demo."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from ops import render
from ops.adapters import local_cluster
from ops.adapters.local_cluster import ClusterConnection
from ops.adapters.local_nodes import CLUSTER_DIR
from ops.bench import bare, desk, plan
from ops.bench.desk import Broken, wait_for
from ops.bench.recovery import wait_until_whole
from ops.bench.results import MEASURED, Row

NODES = 2
SETTLED_LOOKS = 5
SETTLED_PART = 0.01
"""Idle is when so many sums in a row, a second apart, lie within so small a part of each other."""
DEMO = render.CLUSTER_FOLDER.parent / "scripts/demo.py"
DEMO_SECONDS = 600.0


def measure(system: str, case: str, folder: Path) -> Row:
    """Raises Broken when a training or the demonstration does not come to its end."""
    if case == "training":
        values = _training(folder)
    elif case == "demo":
        values = _demo(folder)
    elif system == plan.OURS:
        with desk.cluster(NODES, "bench-memory") as at:
            desk.wait_for_nodes(at, NODES)
            values = {"mib": settled(at.name)}
    else:
        with bare.cluster(NODES) as made:
            values = {"mib": _settled(made.processes)}
    return Row(plan.MEMORY, system, case, MEASURED, values, time.time())


def settled(name: str) -> float:
    return _settled(lambda: local_cluster.processes(name))


def _settled(processes: Callable[[], list[psutil.Process]]) -> float:
    looks: list[float] = []

    def look() -> float | None:
        looks.append(pss(processes()))
        time.sleep(1.0)  # the distance of the looks is what is measured here
        last = looks[-SETTLED_LOOKS:]
        calm = len(last) == SETTLED_LOOKS and max(last) - min(last) <= SETTLED_PART * max(last)
        return last[-1] if calm else None

    return wait_for(look, "memory that no longer changes")


def pss(processes: Iterable[psutil.Process]) -> float:
    """Sum in MiB; a process that has just ended counts nothing."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 2**20


def _training(folder: Path) -> dict[str, float]:
    """Two ranks and a warm spare under `job run`: what supervisor and spare hold."""
    with desk.cluster(NODES + 1, "bench-memory") as at:
        desk.wait_for_nodes(at, NODES + 1)
        training = desk.supervised(at, folder, "python", "train_steadyray.py", "1")
        try:
            wait_until_whole(training, 1)
            assert training.command is not None
            supervisor = pss([psutil.Process(training.command.pid)])
            spare = max(
                pss([process]) for process in _members(at) if process.pid not in training.ranks().values()
            )
        finally:
            training.close()
        return {"supervisor_mib": supervisor, "spare_mib": spare}


def _members(at: ClusterConnection) -> list[psutil.Process]:
    """Processes of the ranks and of the spare, by the title that Ray gives them."""
    found = []
    for process in local_cluster.processes(at.name):
        with contextlib.suppress(psutil.Error):
            if "ray::Member" in " ".join(process.cmdline()):
                found.append(process)
    return found


def _demo(folder: Path) -> dict[str, float]:
    """All that the demonstration holds, looked at twice a second from its first process to its last."""
    command = [sys.executable, "-P", str(DEMO)]
    environment = {**os.environ, "STEADYRAY_HOME": str(folder)}
    log = folder.with_suffix(".log")
    folder.mkdir(parents=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    over = threading.Timer(DEMO_SECONDS, process.terminate)
    over.start()
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, pss(_held(folder, process.pid)))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    over.cancel()
    if process.returncode:
        raise Broken(f"the demonstration ended with {process.returncode}: {log.read_text()[-300:]}")
    return {"peak_mib": peak}


def _held(home: Path, pid: int) -> list[psutil.Process]:
    """The command, what it started, and all nodes of the clusters in `home`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == pid or process.environ().get(CLUSTER_DIR, "").startswith(f"{home}/"):
                found.append(process)
    return found
