"""A run directory in a local or shared folder, as keys with contents. Standard library only, as tools use it.

Jobs of users write here whatever they like. What has an odd name or is no regular file is listed by an
escaped name, which nobody takes for a record, and is never opened: a fifo would hold its reader for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from steadyray.rundir import PARTIAL, create_exclusive, write_atomic

FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
UNREADABLE = FORBIDDEN | {errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR}
"""What a user's own folder may answer with; a disk that fails answers otherwise."""
NO_CONTENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})
"""Nothing there, a loop of links, or a socket."""


class FolderGoneError(FileNotFoundError):
    """The folder itself is not there: removed, or its disk is not mounted. Says nothing about one file."""


class Folder:
    """Methods raise OSError, and FolderGoneError where the whole folder has gone: it is never made again."""

    def __init__(self, root: Path) -> None:
        self.root = root

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

    def _check(self) -> None:
        if not self.root.is_dir():
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
