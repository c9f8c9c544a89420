"""Run storage on obstore: a local folder or any URL that obstore knows (s3, gs, az, memory).

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
from obstore.store import LocalStore, ObjectStore, from_url

from ops.errors import StoreError


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


def open_store(root: str, run: str) -> ObStore:
    """The store of `run` under `root`, a folder or a URL. A folder is made when something is written."""
    if "://" not in root:
        folder = Path(root).expanduser().resolve() / run  # one name, however the path is spelled
        with translated(str(folder), ""):
            folder.mkdir(parents=True, exist_ok=True)
            return ObStore(LocalStore(prefix=folder), str(folder))
    url = f"{root.rstrip('/')}/{run}"
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
