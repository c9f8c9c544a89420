"""Where the runs are that this machine knows by name: in the runs folder, or in the storage that `job run
--storage` named, of which a note is kept in the home folder. The truth is the spec in the storage itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

from ops.adapters.run_store import open_store, run_names, url_of
from ops.config import home, runs_root
from ops.errors import StoreError
from ops.ports import RunStore

CREDENTIALS = (
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_SAS_TOKEN",
)


def root_of(name: str) -> str:
    return _noted().get(name) or runs_root()


def url(name: str) -> str:
    return url_of(root_of(name), name)


def store(name: str) -> RunStore:
    return open_store(root_of(name), name)


def names() -> list[str]:
    """Runs in the runs folder, and those in a storage of their own, which is not asked."""
    return sorted({*run_names(runs_root()), *_noted()})


def hidden() -> tuple[str, ...]:
    """Values by which this process opens its storage; they must appear in no record."""
    return tuple(value for name in CREDENTIALS if (value := os.environ.get(name)))


def note(name: str, root: str) -> None:
    """Raises StoreError."""
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        (_folder() / f"{name}.json").write_text(json.dumps({"storage": root}))
    except OSError as error:
        raise StoreError(f"cannot note where run {name} is kept: {error}") from error


def _noted() -> dict[str, str]:
    found = {}
    for path in sorted(_folder().glob("*.json")):
        try:
            found[path.stem] = str(json.loads(path.read_text())["storage"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _folder() -> Path:
    return home() / "storage"
