"""Find and end the processes of a local Ray node: by a marker in their environment, and by nothing else.

Ray's workers, job supervisors and drivers leave the process group of the `ray start` that made their node,
and `ray stop` ends every cluster of the machine. A variable in the environment is inherited by all of them
and by no process of anybody else. Used by the provider (in Ray's monitor), the keeper (which must stay
small: nothing but psutil and our errors is imported here) and `local_cluster`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ops.errors import OpsTimeoutError

MARKER = "STEADYRAY_NODE"
"""Variable whose value is `<cluster uuid>/<instance id>`. The uuid is new for each cluster that is made."""


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    created: float

    @classmethod
    def of(cls, process: psutil.Process) -> ProcessId:
        return cls(process.pid, process.create_time())

    def alive(self) -> bool:
        """Whether it runs. A zombie does not: where PID 1 does not reap, it stays for ever."""
        process = self.process()
        if process is None:
            return False
        try:
            return process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(self.pid)
            # /proc gives hundredths of a second; after suspend the boot time may move by a little.
            return process if abs(process.create_time() - self.created) < 0.05 else None
        except psutil.NoSuchProcess:
            return None


def marker(cluster_uuid: str, instance: str) -> str:
    return f"{cluster_uuid}/{instance}"


def marked(cluster_uuid: str, instance: str | None = None) -> list[psutil.Process]:
    """All living processes of a cluster, or of one of its nodes."""
    return [process for process, value in _all_marked() if _matches(value, cluster_uuid, instance)]


def _matches(value: str, cluster_uuid: str, instance: str | None) -> bool:
    found_uuid, _, found_instance = value.partition("/")
    return found_uuid == cluster_uuid and instance in (None, found_instance)


def _all_marked() -> Iterator[tuple[psutil.Process, str]]:
    me = os.getuid()
    for process in psutil.process_iter():
        # A process of another user cannot be ours, one that has just ended no longer is.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.uids().real != me and me != 0:
                continue
            value = process.environ().get(MARKER)
            if value and process.status() != psutil.STATUS_ZOMBIE:
                yield process, value


def end(
    find: Callable[[], list[psutil.Process]], grace_seconds: float = 2.0, patience_seconds: float = 15.0
) -> int:
    """End what `find` finds: SIGTERM, after `grace_seconds` SIGKILL, again until nothing is found.

    Looks again since a process may fork while it is being ended. Returns how many were ended; raises
    OpsTimeoutError when some are left after `patience_seconds`.
    """
    deadline = time.monotonic() + patience_seconds
    kill_at = time.monotonic() + grace_seconds
    ended: set[int] = set()
    asked: set[int] = set()
    while processes := _found_twice(find):
        killing = time.monotonic() >= kill_at
        for process in processes:
            ended.add(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                if killing:
                    process.kill()
                elif process.pid not in asked:
                    asked.add(process.pid)
                    process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=0.1)
        if alive and time.monotonic() > deadline:
            raise OpsTimeoutError(
                f"processes {sorted(p.pid for p in alive)} do not end, not even by SIGKILL",
                hint="they are in uninterruptible sleep; look at the disk or NFS, then type "
                "`steadyray cluster down` again",
            )
    _remove_torch_segments(ended)
    return len(ended)


def _found_twice(find: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    """What is found, but for this process; looks again before it says that nothing is.

    Between fork and exec a process has no environment to be found by.
    """
    for pause in (0.05, 0.0):
        if processes := [process for process in find() if process.pid != os.getpid()]:
            return processes
        time.sleep(pause)
    return []


def _remove_torch_segments(pids: set[int]) -> None:
    """Shared memory of torch data loaders: named after its maker, and left behind when that is killed."""
    for pid in pids:
        for segment in Path("/dev/shm").glob(f"torch_{pid}_*"):
            with contextlib.suppress(FileNotFoundError):
                segment.unlink()
