"""Who looks after a run: a mark that its supervisors renew, so that others can say when there is none left.

Written by `ops.supervise` while it ticks, read by `ops.explain`. It decides nothing: any number of
supervisors may look after a run, and acts are claimed elsewhere.
"""

from __future__ import annotations

import os
import socket

import psutil

from ops import records
from ops.ports import RunStore
from ops.record import Recorder

MARK = "supervisor.json"
RENEW_SECONDS = 10.0
SILENT_SECONDS = 240.0
"""Of a supervisor on another machine; making a cluster again, its longest act, may take as long."""
SKEW_SECONDS = 2.0
"""Between a process's time of birth, which is rounded, and the mark that it wrote."""


class Presence:
    """Renews the mark of one supervisor. The last one to renew it stands there."""

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._due = float("-inf")

    def renew(self, monotonic: float, now: float) -> None:
        if monotonic < self._due:
            return
        who = {"supervisor": self._record.id, "host": socket.gethostname(), "pid": os.getpid()}
        self._record.put(MARK, {**who, "time": now})
        self._due = monotonic + RENEW_SECONDS


def is_looked_after(store: RunStore, now: float) -> bool:
    """On this machine from the process itself, which tells at once; elsewhere from the mark's age."""
    try:
        mark = records.decoded(store.get(MARK) or b"") or {}
        host, pid, written = str(mark["host"]), int(mark["pid"]), float(mark["time"])
    except (TypeError, ValueError, KeyError, OverflowError):
        return False
    if host != socket.gethostname():
        return now - written < SILENT_SECONDS
    try:
        process = psutil.Process(pid)
        same = process.create_time() <= written + SKEW_SECONDS
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):  # the latter: no such number can be a pid
        return False
