"""The run directory as the training library writes it: a folder on storage that all nodes share.

Events and progress are written by a thread of their own, in order, so that slow storage never holds up a
recovery. Everything appears by rename or by exclusive create: a reader never sees half a file.
"""

from __future__ import annotations

import json
import os
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steadyray import contract

PARTIAL = re.compile(r"\..+\.[0-9a-f]{8}")
"""Names of files in the making."""


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` as a whole; the temporary name is unique, so two writers cannot mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create `path` with its content in one step; False when it exists already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        partial.write_bytes(data)
        os.link(partial, path)
    except FileExistsError:
        return False
    else:
        return True
    finally:
        partial.unlink(missing_ok=True)


def own_attempt(root: Path | None) -> int:
    """The supervisor's number of this attempt; without one, the number after all that left a checkpoint.

    A checkpoint's place in the order begins with it: one of a second run with the number of the first would
    be older than what it resumed from.
    """
    if given := os.environ.get(contract.ENV_ATTEMPT):
        return int(given)
    folders = (root / contract.CHECKPOINTS).glob("*-*-*") if root else ()
    return 1 + max((found[0] for f in folders if (found := contract.lineage(f.name))), default=0)


def encode(record: contract.Record) -> bytes:
    return json.dumps(record.to_json(), sort_keys=True, default=str).encode()


class RunWriter:
    """What one driver writes into its run directory. With `root=None` nothing is written."""

    def __init__(self, root: Path | None, attempt: int) -> None:
        self.root = root
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
        self._put(contract.event(self.writer, record.seq), record, create_exclusive)

    def progress(self, progress: contract.Progress) -> None:
        self._put(contract.progress(self.attempt), progress, write_atomic)

    def failure(self, failure: contract.Failure) -> None:
        self._put(contract.failure(self.attempt), failure, create_exclusive)

    def text(self, name: str, content: str) -> str:
        """Save a piece of evidence; returns its path relative to the run directory."""
        path = contract.evidence(self.attempt, name)
        self._later(path, content.encode(), write_atomic)
        return path

    def _put(self, path: str, record: contract.Record, write: Callable[[Path, bytes], object]) -> None:
        self._later(path, encode(record), write)

    def _later(self, path: str, data: bytes, write: Callable[[Path, bytes], object]) -> None:
        if self.root is not None:
            target = self.root / path
            self._queue.put(lambda: self._try(write, target, data))

    def _try(self, write: Callable[[Path, bytes], object], path: Path, data: bytes) -> None:
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
