"""Run storage for the tools: a folder, or a bucket by URL (s3, gs, az), with errors of `ops.errors`.

Claims rest on one thing: an exclusive create that the storage itself decides. A store that ignores the
condition would let two supervisors act at once, so a bucket is probed before anything is begun in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyray import contract, storage
from steadyray.folder import Folder, FolderGoneError
from steadyray.storage import Bucket

from ops.errors import RunGoneError, StoreError, UsageError
from ops.ports import RunStore

NO_RUN = "_"
"""What lies beside the runs begins with it, which no name of a run can."""


class Store:
    """Files of one run. Implements `ops.ports.RunStore`."""

    def __init__(self, files: Folder | Bucket) -> None:
        self._files = files

    @property
    def url(self) -> str:
        return self._files.url

    def create(self, path: str, data: bytes) -> bool:
        with translated(self.url, path):
            return self._files.create(path, data)

    def put(self, path: str, data: bytes) -> None:
        with translated(self.url, path):
            self._files.put(path, data)

    def get(self, path: str) -> bytes | None:
        with translated(self.url, path):
            return self._files.get(path)

    def list(self, prefix: str = "") -> dict[str, int]:
        with translated(self.url, prefix):
            return self._files.list(prefix)

    def delete(self, path: str) -> None:
        with translated(self.url, path):
            self._files.delete(path)


@contextmanager
def translated(url: str, path: str) -> Iterator[None]:
    """The storage's errors into StoreError."""
    try:
        yield
    except FolderGoneError as error:
        raise RunGoneError(Path(url).name, url) from error
    except OSError as error:
        why = str(error).splitlines()[0][:400].removeprefix(f"{url}: ")
        raise StoreError(
            f"run storage {url}: {why}", hint="check that the folder or bucket exists and is writable"
        ) from error


def url_of(root: str, run: str) -> str:
    """One name for a run's directory, however `root` is spelled."""
    return f"{root.rstrip('/')}/{run}" if "://" in root else str(Path(root).expanduser().resolve() / run)


def open_store(root: str, run: str) -> RunStore:
    """The store of `run` under `root`, a folder or a URL."""
    url = url_of(root, run)
    if "://" in root:
        check(root)
        return Store(Bucket(url))
    with translated(url, ""):
        Path(url).mkdir(parents=True, exist_ok=True)
    return Store(Folder(Path(url)))


def open_beside(root: str, name: str) -> RunStore:
    """The store of what lies beside the runs under `root`; made with the first thing that is written."""
    url = url_of(root, name)
    if "://" in root:
        return open_store(root, name)
    return Store(Folder(Path(url), make=True))


def check(root: str) -> None:
    """Raises UsageError for a URL that is no run storage or carries a credential."""
    try:
        if "://" in root:
            storage.check_url(root)
    except ValueError as error:
        raise UsageError(str(error), hint="see docs/training.md, section Storage") from error


def probe(root: str) -> None:
    """Before the first run in a bucket: it answers, and of two creates one wins. Raises StoreError."""
    if "://" in root:
        check(root)
        with translated(root, ""):
            storage.probe(Bucket(root.rstrip("/")))


def run_names(root: str) -> list[str]:
    """Names of the runs under `root` that have a spec."""
    if "://" not in root:
        folders = sorted(p.parent.name for p in Path(root).expanduser().glob("*/spec.json"))
        return [name for name in folders if not name.startswith(NO_RUN)]
    check(root)
    bucket = Bucket(root.rstrip("/"))
    with translated(root, ""):
        found = bucket.folders("")
        return [
            name
            for name in found
            if not name.startswith(NO_RUN) and bucket.get(f"{name}/{contract.SPEC}") is not None
        ]
