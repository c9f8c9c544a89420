"""Packs what a job runs: the working folder and the entrypoint's wrapper, as one deterministic zip.

The zip lies in the run directory, so that a new cluster can have it when the folder has long changed.
Called by `ops.submission`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ops.errors import UsageError

ENTRY_FOLDER = "_steadyray_entry"
SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", ".steadyray", "__pycache__", ".mypy_cache", ".ruff_cache"}
    | {".pytest_cache", ".hypothesis", ".tox", "node_modules", ".idea", ".vscode"}
)
SKIPPED_SUFFIXES = (".pyc", ".pyo")
MOST_BYTES = 100 * 1024 * 1024
"""Packed. Ray refuses packages above 500 MiB and keeps them in the head's memory; data belongs elsewhere."""
EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(folder: Path) -> tuple[str, bytes]:
    """(hash, zip) of `folder`; the same files give the same bytes. Raises UsageError if it is too large."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(_files(folder)):
            name = path.relative_to(folder).as_posix()
            _add(archive, name, path.read_bytes(), executable=os.access(path, os.X_OK))
            if buffer.tell() > MOST_BYTES:
                raise _too_large(folder)
        for name, data in entry_sources().items():
            _add(archive, f"{ENTRY_FOLDER}/{name}", data)
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest(), data


def entry_sources() -> dict[str, bytes]:
    """The wrapper and the contract as files; nothing of the training library is imported for it."""
    spec = importlib.util.find_spec("steadyray")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the package steadyray is not installed", hint="install steadyray next to steadyray-ops"
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    return {name: (package / name).read_bytes() for name in ("entry.py", "contract.py")}


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not f.endswith(".egg-info")]
        for name in names:
            path = Path(parent) / name
            if not name.endswith(SKIPPED_SUFFIXES) and path.is_file():
                yield path


def _add(archive: zipfile.ZipFile, name: str, data: bytes, *, executable: bool = False) -> None:
    """Fixed time and mode: the hash of the code must not change with the checkout."""
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o755 if executable else 0o644) << 16
    archive.writestr(info, data)


def _too_large(folder: Path) -> UsageError:
    sizes = sorted(((p.stat().st_size, p) for p in _files(folder)), reverse=True)[:3]
    largest = ", ".join(f"{p.relative_to(folder)} ({size / 2**20:.0f} MiB)" for size, p in sizes)
    return UsageError(
        f"the code in {folder} is larger than {MOST_BYTES // 2**20} MiB packed; largest: {largest}",
        hint="move data out of the folder, or name a smaller one with --working-dir",
    )
