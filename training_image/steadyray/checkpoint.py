"""Checkpoints that are either whole or do not exist.

One is a folder `checkpoints/<step>-<attempt>-<generation>/`; its manifest with sizes and hashes is written
last. Saving copies the state to host memory (the only part that blocks the training) and writes in a
thread. Loading checks the hashes; a bad checkpoint is set aside, never deleted, and the one before it taken.
One that the storage does not hand out stays where it is: it may be good.
"""

from __future__ import annotations

import errno
import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tenacity import (
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
)

from steadyray import contract
from steadyray.folder import Folder
from steadyray.rundir import encode
from steadyray.state import StateDict, clone
from steadyray.storage import Bucket, Root, Storage, StorageError, inside, open_storage

STATE_FILE = "state.pt"
SET_ASIDE = "set-aside"
NEWEST = f"{contract.CHECKPOINTS}/newest"
"""In a bucket names the last one that was saved, as a list there may be late."""
KEEP_LAST = 3
"""The newest ones kept on disk; two good ones must always be there, the third covers a bad one."""
ENDING_SECONDS = 2.0
"""Between the checkpoints of a group that is about to lose a rank for good: what it may have to redo."""

READ_TRIES = 4
READ_PAUSE_SECONDS = 0.5
"""Before the second try; it doubles. A mount that is being renewed or a server that fails over is back by
then, and the ranks that wait for the state would rather have the newest one."""


class CheckpointCorruptError(Exception):
    """A checkpoint does not have the content that its manifest promises."""


class CheckpointUnreadableError(Exception):
    """The storage hands out no checkpoint now. They may all be good, so that nothing may start over."""


@dataclass(frozen=True, slots=True)
class Saved:
    step: int
    id: str
    bytes: int
    blocking_seconds: float
    total_seconds: float


@dataclass(frozen=True, slots=True)
class Loaded:
    state: StateDict
    id: str
    manifest: contract.Manifest
    seconds: float
    set_aside: tuple[tuple[str, str], ...]
    """(id, reason) of the bad ones met on the way."""
    unreadable: tuple[tuple[str, str], ...] = ()
    """(id, reason) of those that the storage did not hand out."""


@dataclass(slots=True)
class Saver:
    """Writes checkpoints of one generation from rank 0, at most one at a time."""

    root: Root
    attempt: int
    generation: int
    every_seconds: float | None = 30.0
    every_steps: int | None = None
    parent: str | None = None
    keep: int = KEEP_LAST
    on_saved: Callable[[Saved], None] = lambda saved: None
    on_error: Callable[[str], None] = lambda message: None
    last_step: int = 0
    """The step that was saved or resumed from last."""
    last_time: float = field(default_factory=time.monotonic)
    """When that was, in monotonic seconds."""
    failed: bool = False
    """Whether the last write failed."""
    _thread: threading.Thread | None = None

    @property
    def writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def due(self, step: int, is_ending: bool = False) -> bool:
        """Whether to save now; `is_ending` groups save as often as that does not slow them down."""
        if self.writing:
            return False
        if is_ending and time.monotonic() - self.last_time >= ENDING_SECONDS:
            return True
        if self.every_steps is not None:
            return step >= self.last_step + self.every_steps
        return self.every_seconds is not None and time.monotonic() - self.last_time >= self.every_seconds

    def save(
        self, state: StateDict, *, world_size: int, samples: int, sampler: dict[str, Any], wait: bool = False
    ) -> float:
        """Start to save `state`; returns the seconds that this call held up the training."""
        began = time.monotonic()
        if self._thread is not None:
            self._thread.join()
        copy = clone(state, device="cpu")
        blocking = time.monotonic() - began
        self.failed = False
        self.last_time, self.last_step = time.monotonic(), int(state["step"])
        manifest = contract.Manifest(
            step=int(state["step"]), attempt=self.attempt, generation=self.generation, files={},
            parent=self.parent, world_size=world_size, samples=samples, sampler=sampler, time=time.time(),
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self._write, args=(copy, manifest, blocking, began), name="steadyray-checkpoint"
        )
        self._thread.start()
        if wait:
            self._thread.join()
            blocking = time.monotonic() - began
        return blocking

    def _write(self, state: StateDict, manifest: contract.Manifest, blocking: float, began: float) -> None:
        relative = contract.checkpoint(manifest.step, manifest.attempt, manifest.generation)
        id = relative.rpartition("/")[2]
        try:
            storage = open_storage(self.root)
            if storage.get(f"{relative}/{contract.MANIFEST}") is not None:
                return
            size = write(inside(self.root, relative), state, manifest)
            if isinstance(storage, Bucket):
                storage.put(NEWEST, id.encode())
        except Exception as error:  # noqa: BLE001  a full disk is a RuntimeError of torch, a lambda in the state a PicklingError
            self.failed = True
            self.on_error(f"cannot save checkpoint {id}: {type(error).__name__}: {error}")
            return
        self.parent = id
        self.on_saved(Saved(manifest.step, id, size, blocking, time.monotonic() - began))
        with suppress(OSError):  # the next one prunes again
            prune(self.root, self.keep)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()


def write(folder: Root, state: StateDict, manifest: contract.Manifest) -> int:
    """Write one checkpoint; the manifest last, by exclusive create. Returns its size in bytes."""
    storage = open_storage(folder)
    with storage.write_file(STATE_FILE) as path:
        torch.save(state, path)
        size = path.stat().st_size
        files = {STATE_FILE: {"bytes": size, "sha256": _sha256(path)}}
    complete = contract.Manifest.from_json({**manifest.to_json(), "files": files})
    storage.create(contract.MANIFEST, encode(complete))
    return size


def candidates(root: Root) -> list[str]:
    """Ids of the checkpoints that exist, the newest lineage (contract.lineage) first.

    Raises OSError where that cannot be known: who takes it for none starts over.
    """
    storage = open_storage(root)
    if (
        isinstance(storage, Folder)
        and (at := storage.root / contract.CHECKPOINTS).exists()
        and not at.is_dir()
    ):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(at))
    parts = [key.split("/") for key in storage.list(contract.CHECKPOINTS)]
    # one of two parts is a folder that may not be entered
    found = {p[1] for p in parts if len(p) == 2 or (len(p) == 3 and p[2] == contract.MANIFEST)}
    if isinstance(storage, Bucket):
        newest = (storage.get(NEWEST) or b"").decode()
        if newest and storage.get(f"{contract.CHECKPOINTS}/{newest}/{contract.MANIFEST}") is not None:
            found.add(newest)
    return sorted((i for i in found if contract.lineage(i)), key=_order, reverse=True)


def _order(id: str) -> tuple[int, ...]:
    return contract.lineage(id) or ()


def read(folder: Root) -> tuple[StateDict, contract.Manifest]:
    """Raises CheckpointCorruptError when manifest, size or hash are wrong, or the content has no sense, and
    OSError where the storage does not hand it out.
    """
    storage = open_storage(folder)
    with ExitStack() as stack:
        try:
            manifest = _manifest(storage)
            paths = {name: stack.enter_context(storage.read_file(name)) for name in manifest.files}
            for name, path in paths.items():
                _verify(name, path, manifest.files[name])
            path = paths[STATE_FILE]
        except FileNotFoundError as error:  # also where another rank has just set this checkpoint aside
            raise CheckpointCorruptError(f"{Path(error.filename).name} is missing") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointCorruptError(f"{contract.MANIFEST} cannot be read: {error}") from error
        return _decode(path), manifest


def _manifest(storage: Storage) -> contract.Manifest:
    if (data := storage.get(contract.MANIFEST)) is None:
        raise CheckpointCorruptError(f"{contract.MANIFEST} is missing")
    manifest = contract.Manifest.from_json(json.loads(data))
    name = storage.url.rpartition("/")[2]
    if (manifest.attempt, manifest.generation, manifest.step) != contract.lineage(name):
        raise CheckpointCorruptError(f"{contract.MANIFEST} belongs to another checkpoint")
    return manifest


def _verify(name: str, path: Path, expected: dict[str, Any]) -> None:
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise CheckpointCorruptError(f"{name} has {size} bytes, not {expected['bytes']}")
    if _sha256(path) != expected["sha256"]:
        raise CheckpointCorruptError(f"{name} has another SHA-256 than its manifest")


def _decode(path: Path) -> StateDict:
    try:
        state: StateDict = torch.load(path, map_location="cpu", weights_only=False)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise CheckpointCorruptError(f"{STATE_FILE} cannot be decoded: {error}") from error
    return state


def load_newest(root: Root) -> Loaded | None:
    """The newest good checkpoint, or None where there never was one.

    Bad ones before it are moved to `checkpoints/set-aside/`. Where none is good they stay: moved away, the
    next attempt would find no checkpoint and start over as if nothing had been trained. Raises
    CheckpointCorruptError then, or CheckpointUnreadableError if the storage is to blame.
    """
    began = time.monotonic()
    bad: list[tuple[str, str]] = []
    unreadable: list[tuple[str, str]] = []
    try:
        known = _patient()(candidates, root)
    except OSError as error:
        raise CheckpointUnreadableError(f"cannot list the checkpoints: {error}") from error
    for id in known:
        try:
            state, manifest = _patient()(read, inside(root, f"{contract.CHECKPOINTS}/{id}"))
        except CheckpointCorruptError as error:
            bad.append((id, str(error)))
        except OSError as error:
            unreadable.append((id, str(error)))
        else:
            for name, _ in bad:
                set_aside(root, name)
            seconds = time.monotonic() - began
            return Loaded(state, id, manifest, seconds, tuple(bad), tuple(unreadable))
    if not known:
        return None
    kind, word = (CheckpointUnreadableError, "readable") if unreadable else (CheckpointCorruptError, "good")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in (*unreadable, *bad))
    raise kind(f"no {word} checkpoint is left in {inside(root, contract.CHECKPOINTS)}: {reasons}")


def _patient() -> Retrying:
    """Calls a function again that met an OSError, and raises that of the last try.

    Not after a StorageError: a bucket has been asked for long enough by then, and the ranks wait.
    """
    return Retrying(
        retry=retry_if_exception_type(OSError) & retry_if_not_exception_type(StorageError),
        stop=stop_after_attempt(READ_TRIES),
        wait=wait_exponential(multiplier=READ_PAUSE_SECONDS),
        reraise=True,
    )


def set_aside(root: Root, id: str) -> None:
    """Out of the way of the next one to load; where the storage refuses, it is found bad once more then."""
    folder = contract.CHECKPOINTS
    with suppress(OSError):
        open_storage(root).set_aside(f"{folder}/{id}", f"{folder}/{SET_ASIDE}/{id}")


def prune(root: Root, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and left-overs without a manifest that are older."""
    storage, known = open_storage(root), candidates(root)
    for id in known[max(2, keep) :]:
        # The manifest goes first: from then on the checkpoint does not exist for any reader.
        storage.delete(f"{contract.CHECKPOINTS}/{id}/{contract.MANIFEST}")
        storage.remove(f"{contract.CHECKPOINTS}/{id}")
    aside = set(storage.folders(f"{contract.CHECKPOINTS}/{SET_ASIDE}"))  # in a bucket their files stay
    for id in set(storage.folders(contract.CHECKPOINTS)) - aside:
        # One process writes at a time and in this order, so what is older will never be completed.
        older = contract.lineage(id) is not None and bool(known) and _order(id) < _order(known[0])
        if older and storage.get(f"{contract.CHECKPOINTS}/{id}/{contract.MANIFEST}") is None:
            storage.remove(f"{contract.CHECKPOINTS}/{id}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
