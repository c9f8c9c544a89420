"""From a fault to the first new step: one training of a system, hit by several faults one after another."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ops.adapters import local_cluster
from ops.adapters.local_cluster import ClusterConnection
from ops.bench import plan
from ops.bench.desk import (
    READY_SECONDS,
    Broken,
    Training,
    node_of,
    submitted,
    supervised,
    wait_for,
    wait_for_nodes,
)
from ops.bench.results import BROKEN, NEVER, OVER, RECOVERED, Row
from ops.bench.trace import Recovery, recovery, standstill
from ops.errors import OpsError

NODES = 3
"""Two for the ranks, and one where a replacement finds a place at once, whatever the system."""
STEADY_STEPS = 20
"""New steps before a fault: a second of undisturbed training."""
AFTER_HEAD_SECONDS = 10.0
"""How long a training is watched after the head is back."""
TUNED_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "15",
}
"""The best values found for Ray Train 2.60; its defaults are 2, 60 and 600 seconds."""

Start = Callable[[ClusterConnection, Path], Training]


def _ours(spares: int) -> Start:
    return lambda at, folder: supervised(at, folder, "python", "train_steadyray.py", str(spares))


def _ray_train(mode: str, environment: dict[str, str]) -> Start:
    def start(at: ClusterConnection, folder: Path) -> Training:
        command = ("python", "train_ray_train.py", mode, str(folder / "storage"))
        return submitted(at, folder, *command, environment=environment)

    return start


def _torchft(at: ClusterConnection, folder: Path) -> Training:
    command = ("python", "train_torchft.py", str(folder / "storage"))
    return submitted(at, folder, *command, environment=TUNED_ENVIRONMENT)


STARTS: dict[str, Start] = {
    plan.OURS: _ours(1),
    plan.OURS_BARE: _ours(0),
    plan.DEFAULT: _ray_train("default", {}),
    plan.TUNED: _ray_train("tuned", TUNED_ENVIRONMENT),
    plan.TORCHFT: _torchft,
}
SPARES = {plan.OURS: 1}


# --- the faults: each does the harm at once and returns the wall clock time of it ----------------------
def kill_worker(training: Training) -> float:
    return _signal(training.ranks()[1], signal.SIGKILL)


def freeze_worker(training: Training) -> float:
    return _signal(training.ranks()[1], signal.SIGSTOP)


def kill_node(training: Training) -> float:
    """All processes of a node with a rank and without the driver."""
    drivers = node_of(training.driver() or 0)
    nodes = [node_of(pid) for _, pid in sorted(training.ranks().items(), reverse=True)]
    victim = next((node for node in nodes if node is not None and node != drivers), None)
    if victim is None:
        raise Broken("every rank sits on the driver's node")
    return _kill(local_cluster.processes(training.at.name, victim))


def kill_drivers_node(training: Training) -> float:
    node = node_of(training.driver() or 0)
    if node is None:
        raise Broken("the driver has ended before its node was to be killed")
    return _kill(local_cluster.processes(training.at.name, node))


def kill_head(training: Training) -> float:
    """The GCS alone: it takes the rest of the head with it, and the keeper starts a new one."""
    (head,) = [record.instance for record in local_cluster.node_records(training.at.name) if record.is_head]
    parts = local_cluster.processes(training.at.name, head)
    return _kill([part for part in parts if part.name() == "gcs_server"])


def _signal(pid: int, number: signal.Signals) -> float:
    now = time.time()
    os.kill(pid, number)
    return now


def _kill(processes: list[psutil.Process]) -> float:
    if not processes:
        raise Broken("there is no process to kill")
    now = time.time()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return now


INJECT: dict[str, Callable[[Training], float]] = {
    plan.KILLED: kill_worker,
    plan.NODE: kill_node,
    plan.HUNG: freeze_worker,
    plan.HEAD: kill_head,
    plan.DRIVER: kill_drivers_node,
}


# --- one training ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Measure:
    """Where and how long to wait: `cut_seconds` without a new step counts as over."""

    at: ClusterConnection
    root: Path
    cut_seconds: float

    def session(self, system: str, faults: tuple[str, ...], number: int) -> Generator[Row, None, None]:
        """A row for each fault, until the training ends for good or is not whole again in time."""
        folder = self.root / f"bench-{os.getpid()}-{number}"
        try:
            wait_for_nodes(self.at, NODES)
            training = STARTS[system](self.at, folder)
        except OpsError as error:
            yield Row(plan.RECOVERY, system, faults[0], BROKEN, time=time.time(), note=str(error))
            return
        try:
            for fault in faults:
                row = self._row(training, system, fault)
                yield row
                if row.outcome != RECOVERED:
                    return
        finally:
            training.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _row(self, training: Training, system: str, fault: str) -> Row:
        try:
            wait_until_whole(training, SPARES.get(system, 0))
            restarts = head_restarts(self.at.name)
            at = INJECT[fault](training)
            if fault == plan.HEAD:
                outcome, found = self._watch_head(training, at, restarts)
            else:
                outcome, found = self._watch(training, at, new_driver=fault == plan.DRIVER)
        except Broken as error:
            note = f"{error}; {_last_words(training)}"
            return Row(plan.RECOVERY, system, fault, BROKEN, time=time.time(), note=note)
        values = {"seconds": found.seconds, "steps_redone": found.steps_redone} if found else {}
        return Row(plan.RECOVERY, system, fault, outcome, values, time.time())

    def _watch(self, training: Training, at: float, new_driver: bool) -> tuple[str, Recovery | None]:
        """Ranks outlive their driver by some steps, which are no recovery: those of a new one count."""
        while time.time() < at + self.cut_seconds:
            restarted = training.driver_after(at) if new_driver else 0.0
            if restarted is not None and (found := recovery(training.marks(), at, restarted)):
                return RECOVERED, found
            if training.failed():
                return NEVER, None
            time.sleep(0.05)
        return OVER, None

    def _watch_head(self, training: Training, at: float, restarts: int) -> tuple[str, Recovery | None]:
        """The training may go on without a head, or trip over its return: watch until that is past."""
        back = 0.0
        while time.time() < at + READY_SECONDS + self.cut_seconds:
            if training.failed():
                return NEVER, None
            marks, now = training.marks(), time.time()
            if now > marks[-1][0] + self.cut_seconds:
                return OVER, None
            if not back and head_restarts(training.at.name, "running") > restarts:
                back = now
            if back and now > back + AFTER_HEAD_SECONDS and marks[-1][0] > back + 1:
                return RECOVERED, standstill(marks, at, now)
            time.sleep(0.2)
        raise Broken("the head did not come back")


def head_restarts(name: str, state: str | None = None) -> int:
    """How often the keeper has started the head again; -1 where it is not in that state."""
    found = local_cluster.find(name)
    if found is None:
        return -1
    keeper = local_cluster.keeper_state(found)
    return int(keeper["restarts"]) if state in (None, keeper["state"]) else -1


def wait_until_whole(training: Training, spares: int) -> None:
    """All nodes, both ranks and the spare are there, and the training has gone on for a second."""
    wait_for_nodes(training.at, NODES)
    wait_for(lambda: training.failed() or _is_whole(training, spares), "a whole training")
    if training.failed():
        raise Broken("the training has ended")
    before = len(training.marks())
    wait_for(lambda: len(training.marks()) >= before + STEADY_STEPS, f"{STEADY_STEPS} steady steps")


def _is_whole(training: Training, spares: int) -> bool:
    ranks = training.ranks()
    if not training.marks() or set(ranks) != {0, 1} or not all(training.alive(pid) for pid in ranks.values()):
        return False
    if training.command is None:
        return True
    progress = training.progress()
    pids = [rank["pid"] for rank in progress.get("ranks", [])]
    settled = not progress.get("message") and progress.get("spares", 0) >= spares
    return settled and sorted(pids) == sorted(ranks.values())


def _last_words(training: Training) -> str:
    with contextlib.suppress(OSError):
        return (training.folder / "command.log").read_text()[-300:]
    return ""
