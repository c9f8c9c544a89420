"""A run directory in a local or shared folder, as keys with contents. Standard library only, as tools use it.

Jobs of users write here whatever they like. What has an odd name or is no regular file is listed by an
escaped name, which nobody takes for a record, and is never opened: a fifo would hold its reader for ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
UNREADABLE = FORBIDDEN | {errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR}
"""What a user's own folder may answer with; a disk that fails answers otherwise."""
NO_CONTENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})
"""Nothing there, a loop of links, or a socket."""


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


class FolderGoneError(FileNotFoundError):
    """The folder itself is not there: removed, or its disk is not mounted. Says nothing about one file."""


class Folder:
    """Methods raise OSError; without `make` FolderGoneError where the whole folder is not there."""

    def __init__(self, root: Path, *, make: bool = False) -> None:
        self.root = root
        self._make = make

    @property
    def url(self) -> str:
        return str(self.root)

    def create(self, key: str, data: bytes) -> bool:
        """Exclusive and atomic: False if there is something of that name already."""
        self._check()
        return create_exclusive(self.root / key, data)

    def put(self, key: str, data: bytes) -> None:
        self._check()
        write_atomic(self.root / key, data)

    def get(self, key: str) -> bytes | None:
        """None also where something else than a file has the name."""
        try:
            descriptor = os.open(self.root / key, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in NO_CONTENT:
                raise
            self._check()
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        with open(descriptor, "rb") as file:
            return file.read()

    def list(self, prefix: str = "") -> dict[str, int]:
        """Whatever lies below a folder, with sizes; links are named and not followed."""
        self._check()
        return dict(_walk(self.root, prefix.strip("/")))

    def delete(self, key: str) -> None:
        self._check()
        (self.root / key).unlink(missing_ok=True)

    @contextlib.contextmanager
    def write_file(self, key: str) -> Iterator[Path]:
        """The file itself: whoever reads it waits for a manifest that is written after it."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path

    @contextlib.contextmanager
    def read_file(self, key: str) -> Iterator[Path]:
        yield self.root / key

    def set_aside(self, folder: str, to: str) -> None:
        source, target = self.root / folder, self.root / to
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():  # the same step was saved, found bad and saved again
            target = target.with_name(f"{target.name}-{time.time_ns()}")
        with contextlib.suppress(FileNotFoundError):  # another rank was quicker
            source.replace(target)

    def folders(self, prefix: str) -> tuple[str, ...]:
        try:
            return tuple(entry.name for entry in os.scandir(self.root / prefix) if entry.is_dir())
        except FileNotFoundError:
            return ()

    def remove(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)

    def _check(self) -> None:
        if not self._make and not self.root.is_dir():
            raise FolderGoneError(errno.ENOENT, "the folder is gone", str(self.root))


def _walk(root: Path, prefix: str) -> Iterator[tuple[str, int]]:
    waiting = [prefix]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(root / folder))
        except OSError as error:
            if error.errno not in UNREADABLE or (folder == prefix and error.errno in FORBIDDEN):
                raise
            if folder != prefix:  # something is there, whatever it holds
                yield _escaped(folder), 0
            continue
        for entry in entries:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append(key)
            elif not PARTIAL.fullmatch(entry.name) and (size := _size(entry)) is not None:
                yield _escaped(key), size


def _size(entry: os.DirEntry[str]) -> int | None:
    """None for what holds no content: a fifo, a socket, or a file that was deleted since."""
    try:
        seen = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return seen.st_size if stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode) else None


def _escaped(key: str) -> str:
    """Printable, whatever bytes the name has; a name without odd ones stays as it is."""
    return key if key.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in key)
