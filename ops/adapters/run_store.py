"""Run storage: a folder, or by obstore any URL that it knows (s3, gs, az, memory).

Claims rest on one thing: an exclusive create that the storage itself decides. A store that ignores the
condition would let two supervisors act at once, so a URL is probed when it is first opened.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import ObjectStore, from_url
from steadyray.folder import Folder, FolderGoneError

from ops.errors import RunGoneError, StoreError
from ops.ports import RunStore


class FolderStore:
    """Files of one run in a folder. Implements `ops.ports.RunStore`."""

    def __init__(self, folder: Path) -> None:
        self._folder = Folder(folder)

    @property
    def url(self) -> str:
        return str(self._folder.root)

    def create(self, path: str, data: bytes) -> bool:
        with translated(self.url, path):
            return self._folder.create(path, data)

    def put(self, path: str, data: bytes) -> None:
        with translated(self.url, path):
            self._folder.put(path, data)

    def get(self, path: str) -> bytes | None:
        with translated(self.url, path):
            return self._folder.get(path)

    def list(self, prefix: str = "") -> dict[str, int]:
        with translated(self.url, prefix):
            return self._folder.list(prefix)

    def delete(self, path: str) -> None:
        with translated(self.url, path):
            self._folder.delete(path)


class ObStore:
    """Files of one run under a prefix. Implements `ops.ports.RunStore`."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        self._store = store
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def create(self, path: str, data: bytes) -> bool:
        try:
            with translated(self._url, path):
                obstore.put(self._store, path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        with translated(self._url, path):
            obstore.put(self._store, path, data)

    def get(self, path: str) -> bytes | None:
        try:
            with translated(self._url, path):
                return bytes(obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None

    def list(self, prefix: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        with translated(self._url, prefix):
            for batch in obstore.list(self._store, prefix=prefix or None):
                found.update({str(meta["path"]): int(meta["size"]) for meta in batch})
        return found

    def delete(self, path: str) -> None:
        try:
            with translated(self._url, path):
                obstore.delete(self._store, path)
        except FileNotFoundError:
            return


@contextmanager
def translated(url: str, path: str) -> Iterator[None]:
    """obstore's errors into FileExistsError, FileNotFoundError and StoreError."""
    try:
        yield
    except FolderGoneError as error:
        raise RunGoneError(Path(url).name, url) from error
    except AlreadyExistsError as error:
        raise FileExistsError(path) from error
    except (NotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(path) from error
    except (BaseError, OSError) as error:
        why = str(error).splitlines()[0][:300]
        raise StoreError(
            f"run storage {url}: {path or '/'}: {why}",
            hint="check that the folder or bucket exists and is writable",
        ) from error


def url_of(root: str, run: str) -> str:
    """One name for a run's directory, however `root` is spelled."""
    return f"{root.rstrip('/')}/{run}" if "://" in root else str(Path(root).expanduser().resolve() / run)


def open_store(root: str, run: str) -> RunStore:
    """The store of `run` under `root`, a folder or a URL."""
    url = url_of(root, run)
    if "://" not in root:
        with translated(url, ""):
            Path(url).mkdir(parents=True, exist_ok=True)
        return FolderStore(Path(url))
    with translated(url, ""):
        store = ObStore(from_url(url), url)
    probe(store)
    return store


def probe(store: ObStore) -> None:
    """Refuses a storage that lets the same path be created twice."""
    path = f"_probe/{secrets.token_hex(8)}"
    try:
        first, second = store.create(path, b"1"), store.create(path, b"2")
    finally:
        store.delete(path)
    if not first or second:
        raise StoreError(
            f"run storage {store.url} ignores exclusive creates, so two supervisors could act at once",
            hint="use a storage with conditional writes (S3, GCS, Azure, or a POSIX folder).",
        )


def run_names(root: str) -> list[str]:
    """Names of the runs under `root` that have a spec."""
    if "://" not in root:
        folder = Path(root).expanduser()
        return sorted(p.parent.name for p in folder.glob("*/spec.json"))
    with translated(root, ""):
        listed = obstore.list_with_delimiter(from_url(root))
    return sorted(str(prefix).rsplit("/", 1)[-1] for prefix in listed["common_prefixes"])
