"""`make demo`: a training on real data that is hit by four faults and finishes all the same.

Starts a cluster of its own, runs the digits recipe with `steadyray job run`, does the harm once the training
has made steps since the fault before, prints the report and takes everything away again, whatever happens
in between. Only the faults are special here; the rest is what a user types.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from steadyray import contract

from ops import cli, config
from ops.adapters import local_cluster
from ops.adapters.local_processes import MARKER

RECIPE = Path(__file__).resolve().parents[1] / "training_image/recipes/digits.yaml"
CLUSTER = "demo"
OVERRIDES = ("epochs=45", "workers.min=2")
"""About 85 s of steps. With two workers at least, a slow machine makes none while it waits for a new one."""
STEPS_BETWEEN_FAULTS = 60
STEPS_WITHOUT_SPARE = 180
"""So long a fault waits for a warm spare; then it comes all the same, and the group waits for a process."""
STOP_SECONDS = 40
"""What an interrupted run gets to stop; Ray gives its driver 30 of them."""

Progress = dict[str, Any]


# --- the faults: each does the harm and says what it did, or returns None where it is not the moment ---
def kill_node(run: Path, progress: Progress) -> str | None:
    """A node with a rank, but not the driver's: losing that one costs an attempt, which is another story."""
    driver = drivers_node(run)
    for rank in progress["ranks"]:
        if (node := node_of(rank["pid"])) != driver:
            count = local_cluster.kill_node(CLUSTER, node)
            return f"kills all {count} processes of the node of rank {rank['rank']}"
    return None


def kill_worker(run: Path, progress: Progress) -> str:
    rank = progress["ranks"][-1]
    os.kill(rank["pid"], signal.SIGKILL)
    return f"kills the worker of rank {rank['rank']} (SIGKILL)"


def freeze_worker(run: Path, progress: Progress) -> str:
    rank = progress["ranks"][0]
    os.kill(rank["pid"], signal.SIGSTOP)
    return f"freezes the worker of rank {rank['rank']} (SIGSTOP): alive for its node, silent for its peers"


def kill_head(run: Path, progress: Progress) -> str:
    head = next(record.instance for record in local_cluster.node_records(CLUSTER) if record.is_head)
    return f"kills all {local_cluster.kill_node(CLUSTER, head)} processes of the head"


Fault = Callable[[Path, Progress], str | None]
FAULTS: tuple[Fault, ...] = (kill_node, kill_worker, freeze_worker, kill_head)


def node_of(pid: int) -> str:
    """Instance id of the node that a process belongs to, from the marker in its environment."""
    return psutil.Process(pid).environ()[MARKER].partition("/")[2]


def drivers_node(run: Path) -> str:
    """Instance id of the node of the newest driver; the job itself wrote its pid into `started.json`."""
    started = sorted((run / "attempts").glob("*/started.json"))[-1]
    return node_of(json.loads(started.read_text())["pid"])


# --- when to do the harm -----------------------------------------------------------------------------
@dataclass
class Saboteur:
    """Waits in a thread of its own for the moment of each fault."""

    run: Path
    say: Callable[[str], None]
    left: list[Fault] = field(default_factory=lambda: list(FAULTS))
    done: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        step = 0
        while self.left and not self.done.wait(0.2):
            progress = self.progress()
            if progress and is_whole(progress) and is_time(progress, since=step) and self.harm(progress):
                step = progress["step"]

    def harm(self, progress: Progress) -> bool:
        """The first fault whose moment it is. A process may have ended since the progress was written."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            for fault in self.left:
                if text := fault(self.run, progress):
                    self.left.remove(fault)
                    self.say(f"at step {progress['step']}: {text}")
                    return True
        return False

    def progress(self) -> Progress | None:
        """None as long as no attempt has reported."""
        files = sorted(self.run.glob("attempts/*/progress.json"))
        data: Progress | None = json.loads(files[-1].read_text()) if files else None
        return data


def is_whole(progress: Progress) -> bool:
    """Two or more ranks, each in a process that runs: the fault before is over."""
    ranks = progress["ranks"]
    return len(ranks) > 1 and all(runs(rank["pid"]) for rank in ranks)


def is_time(progress: Progress, since: int) -> bool:
    steps: int = progress["step"] - since
    return steps >= (STEPS_BETWEEN_FAULTS if progress["spares"] else STEPS_WITHOUT_SPARE)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
    except psutil.NoSuchProcess:
        return False


# --- around it ---------------------------------------------------------------------------------------
def main() -> int:
    os.chdir(RECIPE.parents[2])
    run_name = time.strftime("demo-%Y%m%d-%H%M%S")
    run = config.home() / "runs" / run_name
    words = (
        str(RECIPE.relative_to(Path.cwd())),
        *OVERRIDES,
        "--name",
        run_name,
        "--cluster",
        CLUSTER,
    )
    with cluster(), stopped(run), saboteur(run) as faults:
        code = steadyray("job", "run", *words)
    if faults.left:
        say(f"the training ended before these: {', '.join(fault.__name__ for fault in faults.left)}")
    return code or bool(faults.left)


def steadyray(*words: str) -> int:
    """Type a command; one that was interrupted ends the demonstration."""
    say(f"$ steadyray {' '.join(words)}")
    code = cli.run(list(words))
    if code == cli.EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return code


@contextmanager
def cluster() -> Iterator[None]:
    """A cluster that is gone afterwards, also after Ctrl-C; nothing may interrupt its end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        if code := steadyray("cluster", "up", "--name", CLUSTER, "--free-ports"):
            raise SystemExit(code)
        yield
    except KeyboardInterrupt:
        say("interrupted; taking the cluster away")
        raise SystemExit(cli.EXIT_INTERRUPTED) from None
    finally:
        ignore_interrupts()
        if cli.run(["cluster", "down", "--name", CLUSTER]):
            say(f"something is left; type: .venv/bin/steadyray cluster down --name {CLUSTER}")


@contextmanager
def stopped(run: Path) -> Iterator[None]:
    """A run that is interrupted is stopped while its cluster is there: without one it could not end."""
    try:
        yield
    except KeyboardInterrupt:
        ignore_interrupts()
        if (run / contract.SPEC).exists():
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.alarm(STOP_SECONDS)
            steadyray("job", "stop", run.name)
            signal.alarm(0)
        raise


def interrupt(number: int, frame: FrameType | None) -> None:
    """Taken from `job run`, which would tell how to come back to a run that is stopped here."""
    raise KeyboardInterrupt


def ignore_interrupts() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def saboteur(run: Path) -> Iterator[Saboteur]:
    faults = Saboteur(run, say)
    thread = threading.Thread(target=faults.work, name="saboteur", daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        faults.done.set()
        thread.join()


def say(text: str) -> None:
    """On stderr as it is now: while the live view is shown, that is a line above it."""
    print(f"demo: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
