"""Where a run directory lies: a folder that all nodes share, or a bucket (S3, GCS, Azure) by obstore.

Both have the same few methods on keys, and raise OSError. What decides who may act is `create`: it has one
winner, and knows its own write again when the storage did it and the answer was lost. Credentials come from
the process's environment or the machine's role; a URL that carries one is refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from steadyray.folder import Folder

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
Root = str | os.PathLike[str]
"""Folder or URL of a run directory, or of a part of one."""
SCHEMES = ("s3", "gs", "az", "memory")
INSTALL = "pip install 'steadyray[bucket]'"
SMALL_SECONDS = 10.0
"""For one answer about a record; a checkpoint's part of 8 MiB is given ten times that."""
RETRY_SECONDS = 30.0
"""For how long one call is repeated while the storage refuses, is silent or cuts connections."""
PART_BYTES = 8 * 2**20
MARK = "steadyray-mark"
"""Name of the metadata by which a create knows its own object again."""


def inside(root: Root, relative: str) -> str:
    """A folder of a run directory, as a root of its own."""
    return f"{os.fspath(root).rstrip('/')}/{relative}"


class StorageError(OSError):
    """The bucket refused, or did not answer for too long."""


class Storage(Protocol):
    """A run directory. Keys are the paths of `steadyray.contract`."""

    @property
    def url(self) -> str: ...

    def create(self, key: str, data: bytes) -> bool:
        """Exclusive and atomic: False if there is something of that name already."""

    def put(self, key: str, data: bytes) -> None:
        """Atomic replace."""

    def get(self, key: str) -> bytes | None: ...

    def list(self, prefix: str = "") -> dict[str, int]:
        """Keys below a folder, with sizes in bytes."""

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Names of the folders in a folder."""

    def delete(self, key: str) -> None:
        """Does nothing where there is nothing of that name."""

    def write_file(self, key: str) -> AbstractContextManager[Path]:
        """A path to write a large file to; at the end of the block it is stored as `key`."""

    def read_file(self, key: str) -> AbstractContextManager[Path]:
        """A path with the content of `key`. Raises FileNotFoundError."""

    def remove(self, folder: str) -> None:
        """Delete what lies below `folder`, as far as that goes."""

    def set_aside(self, folder: str, to: str) -> None:
        """Keep the files of `folder` where no reader takes them; nothing is deleted."""


def open_storage(url: Root) -> Folder | Bucket:
    """Contacts nobody. Raises ValueError for a URL that is no storage or carries a credential."""
    named = os.fspath(url)
    if "://" not in named or named.startswith("file://"):
        return Folder(Path(named.removeprefix("file://")).expanduser().absolute(), make=True)
    check_url(named)
    return Bucket(named.rstrip("/"))


def check_url(url: str) -> None:
    """Raises ValueError. Nothing of a URL that may hold a credential is repeated."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            f"the URL {parts.scheme}://… carries a user, a password or a signature, and it is stored with "
            "the run: give the plain URL, and the credential in the environment (for S3 AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) or as a role of the machine"
        )
    if parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme == "memory"):
        raise ValueError(
            f"{url} is no run storage: give a folder, s3://…, gs://… or az://ACCOUNT/CONTAINER/…"
        )


class Bucket:
    """A prefix of a bucket. Opened at the first call, so that it can be sent to other processes."""

    def __init__(self, url: str, store: ObjectStore | None = None) -> None:
        if not all(importlib.util.find_spec(name) for name in ("obstore", "tenacity")):
            raise StorageError(f"{url} needs the packages obstore and tenacity: {INSTALL}")
        self.url = url
        if store is not None:
            self.__dict__["_quick"] = self.__dict__["_bulk"] = store

    def __reduce__(self) -> tuple[type[Bucket], tuple[str]]:
        return Bucket, (self.url,)

    def __repr__(self) -> str:
        return f"Bucket({self.url!r})"

    @cached_property
    def _quick(self) -> ObjectStore:
        return _open(self.url, SMALL_SECONDS)

    @cached_property
    def _bulk(self) -> ObjectStore:
        return _open(self.url, 10 * SMALL_SECONDS)

    def create(self, key: str, data: bytes) -> bool:
        import obstore

        mark = secrets.token_hex(16)

        def once() -> bool:
            store = self._by_size(len(data))
            obstore.put(store, key, data, mode="create", attributes={MARK: mark}, use_multipart=False)
            return True

        try:
            return self._persist(once, key)
        except FileExistsError:  # ours all the same where the answer to an earlier try was lost
            return self._persist(lambda: self._mark_of(key), key) == mark

    def _mark_of(self, key: str) -> str:
        import obstore

        return str(obstore.get(self._quick, key, options={"head": True}).attributes.get(MARK, ""))

    def put(self, key: str, data: bytes) -> None:
        import obstore

        store = self._by_size(len(data))
        self._persist(lambda: obstore.put(store, key, data, use_multipart=False), key)

    def _by_size(self, count: int) -> ObjectStore:
        return self._quick if count <= PART_BYTES // 8 else self._bulk

    def get(self, key: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self._persist(lambda: b"".join(self._parts(key)), key)
        return None

    def _parts(self, key: str) -> Iterator[bytes]:
        """In parts, each with its own time-out and repeats: a large file needs no unbroken connection."""
        import obstore

        found = obstore.get(self._quick, key)
        size = int(found.meta["size"])
        if size <= PART_BYTES // 8:
            yield bytes(found.bytes())
            return
        for start in range(0, size, PART_BYTES):
            end = min(start + PART_BYTES, size)
            yield bytes(obstore.get_range(self._bulk, key, start=start, end=end))

    def list(self, prefix: str = "") -> dict[str, int]:
        import obstore

        def once() -> dict[str, int]:
            batches = obstore.list(self._quick, prefix=prefix or None)
            return {str(meta["path"]): int(meta["size"]) for batch in batches for meta in batch}

        return self._persist(once, prefix)

    def folders(self, prefix: str) -> tuple[str, ...]:
        import obstore

        def once() -> tuple[str, ...]:
            found = obstore.list_with_delimiter(self._quick, prefix or None)
            return tuple(sorted(str(p).rsplit("/", 1)[-1] for p in found["common_prefixes"]))

        return self._persist(once, prefix)

    def delete(self, key: str) -> None:
        import obstore

        with contextlib.suppress(FileNotFoundError):
            self._persist(lambda: obstore.delete(self._quick, key), key)

    @contextlib.contextmanager
    def write_file(self, key: str) -> Iterator[Path]:
        import obstore

        with _scratch() as path:
            yield path
            self._persist(lambda: obstore.put(self._bulk, key, path, chunk_size=PART_BYTES), key)

    @contextlib.contextmanager
    def read_file(self, key: str) -> Iterator[Path]:
        with _scratch() as path:
            self._persist(lambda: self._download(key, path), key)
            yield path

    def _download(self, key: str, path: Path) -> None:
        with path.open("wb") as file:
            file.writelines(self._parts(key))

    def set_aside(self, folder: str, to: str) -> None:
        """Only the manifest moves: without it the rest is no checkpoint, and to move is to copy there."""
        for key in self.list(folder):
            if key.endswith("/MANIFEST.json") and (data := self.get(key)) is not None:
                self.create(f"{to}{key.removeprefix(folder)}", data)
                self.delete(key)

    def remove(self, folder: str) -> None:
        with contextlib.suppress(OSError):
            for key in self.list(folder):
                self.delete(key)

    def _persist(self, call: Callable[[], T], key: str) -> T:
        """obstore repeats what it knows to be safe; all calls made here are, so this repeats the rest."""
        from obstore.exceptions import BaseError
        from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

        tries = Retrying(
            retry=retry_if_exception(_passes),
            wait=wait_exponential_jitter(multiplier=0.2, max=5.0),
            stop=stop_after_delay(RETRY_SECONDS),
            reraise=True,
        )
        try:
            return tries(call)
        except (BaseError, FileExistsError, FileNotFoundError) as error:
            raise _translated(error, self.url, key) from error


def probe(storage: Storage) -> None:
    """Raises StorageError for a storage that lets the same key be created twice: two could act at once."""
    key = f"_probe/{secrets.token_hex(8)}"
    try:
        first, second = storage.create(key, b"1"), storage.create(key, b"2")
    finally:
        storage.delete(key)
    if not first or second:
        raise StorageError(
            f"{storage.url} ignores exclusive creates (a put with If-None-Match: *), so two supervisors "
            "could act at once"
        )


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="steadyray-")
    try:
        yield Path(folder) / "file"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _passes(error: BaseException) -> bool:
    """Whether the same call may do better later. obstore has its own class for what will not."""
    from obstore import exceptions as known

    lasting = (
        known.AlreadyExistsError, known.NotFoundError, known.PermissionDeniedError,
        known.UnauthenticatedError, known.NotSupportedError, known.InvalidPathError,
        known.UnknownConfigurationKeyError,
    )  # fmt: skip
    return isinstance(error, known.BaseError) and not isinstance(error, lasting)


def _translated(error: Exception, url: str, key: str) -> OSError:
    from obstore import exceptions as known

    if isinstance(error, (known.AlreadyExistsError, FileExistsError)):
        return FileExistsError(key)
    if isinstance(error, (known.NotFoundError, FileNotFoundError)):
        return FileNotFoundError(2, "there is no such object", key)
    why = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
    return StorageError(f"{url}: {key or '/'}: {why}")


def _open(url: str, seconds: float) -> ObjectStore:
    from obstore.store import from_url

    if url.startswith("memory"):
        return from_url(url)
    more: dict[str, Any] = {}
    if url.startswith("s3") and os.environ.get("AWS_PROFILE") and not os.environ.get("AWS_ACCESS_KEY_ID"):
        from obstore.auth.boto3 import Boto3CredentialProvider

        more["credential_provider"] = Boto3CredentialProvider()
    return from_url(
        url,
        client_options={
            "timeout": timedelta(seconds=seconds),
            "connect_timeout": timedelta(seconds=5),
            "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
        },
        retry_config={
            "max_retries": 5,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS / 2),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2)},
        },
        **more,
    )
