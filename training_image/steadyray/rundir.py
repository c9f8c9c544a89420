"""The run directory as the training library writes it: a folder that all nodes share, or a bucket.

Events and progress are written by a thread of their own, in order, so that slow storage never holds up a
recovery. Everything appears by rename or by exclusive create: a reader never sees half a file.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from steadyray import contract
from steadyray.hiding import hide
from steadyray.storage import Root, open_storage


def own_attempt(root: Root | None) -> int:
    """The supervisor's number of this attempt; without one, the number after all that left a checkpoint.

    A checkpoint's place in the order begins with it: one of a second run with the number of the first would
    be older than what it resumed from.
    """
    if given := os.environ.get(contract.ENV_ATTEMPT):
        return int(given)
    folders = open_storage(root).folders(contract.CHECKPOINTS) if root else ()
    return 1 + max((found[0] for f in folders if (found := contract.lineage(f))), default=0)


def encode(record: contract.Record) -> bytes:
    return hide(json.dumps(record.to_json(), sort_keys=True, default=str)).encode()


class RunWriter:
    """What one driver writes into its run directory. With `root=None` nothing is written."""

    def __init__(self, root: Root | None, attempt: int) -> None:
        self._storage = open_storage(root) if root is not None else None
        self.attempt = attempt
        self.writer = f"driver-{attempt:04d}-{uuid.uuid4().hex[:8]}"
        self._seq = 0
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="steadyray-writer", daemon=True)
        self._thread.start()
        self.error: str = ""

    def event(
        self, kind: contract.EventKind, *, generation: int = 0, incident: str = "", **data: Any
    ) -> None:
        self._seq += 1
        record = contract.Event(
            time=time.time(), kind=kind, writer=self.writer, seq=self._seq, attempt=self.attempt,
            generation=generation, incident=incident, data=data,
        )  # fmt: skip
        self._put(contract.event(self.writer, record.seq), record, once=True)

    def record(self, path: str, record: contract.Record) -> None:
        self._put(path, record)

    def progress(self, progress: contract.Progress) -> None:
        self._put(contract.progress(self.attempt), progress)

    def failure(self, failure: contract.Failure) -> None:
        self._put(contract.failure(self.attempt), failure, once=True)

    def text(self, name: str, content: str) -> str:
        """Save a piece of evidence; returns its path relative to the run directory."""
        path = contract.evidence(self.attempt, name)
        self._later(path, hide(content).encode())
        return path

    def _put(self, path: str, record: contract.Record, *, once: bool = False) -> None:
        self._later(path, encode(record), once)

    def _later(self, path: str, data: bytes, once: bool = False) -> None:
        if self._storage is not None:
            write = self._storage.create if once else self._storage.put
            self._queue.put(lambda: self._try(write, path, data))

    def _try(self, write: Callable[[str, bytes], object], path: str, data: bytes) -> None:
        """Storage that fails must not end the training; what cannot be written is said in the log."""
        for delay in (0.1, 0.5, 2.0, 5.0):
            try:
                write(path, data)
            except OSError as error:
                self.error = f"cannot write {path}: {error}"
                time.sleep(delay)
            else:
                self.error = ""
                return
        print(f"steadyray: {self.error}", flush=True)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()

    def close(self, timeout: float = 10.0) -> None:
        """Write out what is queued; `timeout` in seconds."""
        self._queue.put(None)
        self._thread.join(timeout)
