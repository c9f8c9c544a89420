"""What entry.py asks of a run directory in a bucket: whose start it is, what to end, where to resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from steadyray import contract
from steadyray.storage import inside, open_storage


def claim(url: str, attempt: int, identity: bytes) -> bool:
    """True for exactly one process. Raises OSError where the bucket does not answer."""
    return open_storage(url).create(contract.started(attempt), identity)


def leftovers(url: str, attempt: int) -> Iterator[tuple[str, bytes]]:
    """Attempt and started.json of every attempt before this one."""
    storage, own = open_storage(url), PurePosixPath(contract.attempt_dir(attempt)).name
    for key in sorted(storage.list("attempts")):
        path = PurePosixPath(key)
        if path.name == "started.json" and path.parent.name < own and (data := storage.get(key)):
            yield path.parent.name, data


def newest(url: str) -> str:
    """URL of the newest checkpoint whose manifest is complete and whose files have their sizes, or empty."""
    storage = open_storage(url)
    sizes = storage.list(contract.CHECKPOINTS)
    ids = {key.split("/")[1] for key in sizes if key.endswith(f"/{contract.MANIFEST}")}
    known = sorted((found, i) for i in ids if (found := contract.lineage(i)))
    for _, id in reversed(known):
        folder = f"{contract.CHECKPOINTS}/{id}"
        try:
            files = json.loads(storage.get(f"{folder}/{contract.MANIFEST}") or b"")["files"]
            if files and all(sizes.get(f"{folder}/{f}") == files[f]["bytes"] for f in files):
                return inside(url, folder)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return ""
