"""Packs what a job runs: the working folder and the entrypoint's wrapper, as one deterministic zip.

The zip lies in the run directory, so that a new cluster can have it when the folder has long changed.
Called by `ops.cli.new_run`; `steadyray job predict` unpacks it again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from ops.errors import UsageError

ENTRY_FOLDER = "_steadyray_entry"
SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", ".steadyray", "__pycache__", ".mypy_cache", ".ruff_cache"}
    | {".pytest_cache", ".hypothesis", ".tox", "node_modules", ".idea", ".vscode"}
)
SECRETS = (
    *(
        ".env*",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.kdbx",
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
        "id_ed25519*",
    ),
    *(".netrc", "_netrc", ".git-credentials", ".pypirc", ".npmrc", ".pgpass", ".htpasswd", ".boto", ".s3cfg"),
    *("application_default_credentials.json", "service-account*.json", "service_account*.json"),
)
SECRET_FOLDERS = frozenset({".aws", ".ssh", ".kube", ".docker", ".gnupg", ".azure", ".gcloud", "gcloud"})
"""Stay at home: the zip is kept with the run and lies in the head's memory. Told in docs/training.md."""
SKIPPED = ("*.pyc", "*.pyo", "*.egg-info")
MOST_BYTES = 100 * 1024 * 1024
"""Before packing, so that nothing is read for the answer. Ray refuses packages above 500 MiB and keeps them
in the head's memory; data belongs elsewhere."""
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Package:
    """A folder as it travels."""

    code_hash: str
    data: bytes
    """The zip."""
    left_out: tuple[str, ...]
    """What a person might miss, a phrase a path: usual secrets, links that lead nowhere or in a circle."""


def pack(folder: Path) -> Package:
    """`folder` as it is now; the same files give the same bytes.

    Raises UsageError for a folder that is not there or too large, and for a file that cannot be packed.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="name one that is there with --working-dir")
    found = sorted(_walk(folder))
    files = dict(_files(found))
    if sum(files.values()) > MOST_BYTES:
        raise _too_large(folder, files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in files:
            with _named(path):
                _add(archive, _name(path, folder), path.read_bytes(), executable=os.access(path, os.X_OK))
        for name, data in entry_sources().items():
            _add(archive, f"{ENTRY_FOLDER}/{name}", data)
    data = buffer.getvalue()
    left_out = tuple(f"{path.relative_to(folder)} ({why})" for path, why in found if why)
    return Package(hashlib.sha256(data).hexdigest(), data, left_out)


def unpack(data: bytes, folder: Path) -> None:
    """What `pack` made, as files again."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)


def entry_sources() -> dict[str, bytes]:
    """The wrapper and the contract as files; nothing of the training library is imported for it."""
    spec = importlib.util.find_spec("steadyray")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the package steadyray is not installed", hint="install steadyray next to steadyray-ops"
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    return {
        name: (package / name).read_bytes()
        for name in ("entry.py", "contract.py", "hiding.py", "ray_train.py")
    }


def _files(found: list[tuple[Path, str]]) -> Iterator[tuple[Path, int]]:
    """Files to pack with their sizes, in bytes."""
    for path, why in found:
        with _named(path):
            if not why and path.is_file():
                yield path, path.stat().st_size


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files, each with why it stays at home; a link to a folder travels as the folder that it leads to."""
    for parent, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        kept = [Path(parent) / name for name in folders if name not in SKIPPED_FOLDERS and not _skipped(name)]
        reasons = {path: _why_no_folder(path, folder) for path in kept}
        folders[:] = [path.name for path in kept if not reasons[path]]
        yield from ((path, why) for path, why in reasons.items() if why)
        for path in (Path(parent) / name for name in names if not _skipped(name)):
            yield path, _why_no_file(path)


def _skipped(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in SKIPPED)


def _why_no_folder(path: Path, folder: Path) -> str:
    if path.name in SECRET_FOLDERS:
        return "usually holds secrets"
    inside = [path.parent, *(p for p in path.parent.parents if p.is_relative_to(folder))]
    if path.is_symlink() and path.resolve() in {p.resolve() for p in inside}:
        return "a link in a circle"
    return ""


def _why_no_file(path: Path) -> str:
    if any(fnmatch(path.name, pattern) for pattern in SECRETS):
        return "usually holds secrets"
    return "a link to nothing" if path.is_symlink() and not os.path.exists(path) else ""


def _name(path: Path, folder: Path) -> str:
    """As it stands in the zip, which knows UTF-8 only."""
    name = path.relative_to(folder).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _cannot(path, "its name is not UTF-8") from None
    return name


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """The system's errors into one that names the file."""
    try:
        yield
    except OSError as error:
        raise _cannot(path, error.strerror or str(error)) from error


def _refuse(error: OSError) -> None:
    raise _cannot(Path(error.filename), error.strerror or str(error)) from error


def _cannot(path: Path, why: str) -> UsageError:
    shown = os.fsencode(path).decode(errors="backslashreplace")
    return UsageError(
        f"cannot send {shown} along: {why}",
        hint="mend it, move it out of the folder, or name another folder with --working-dir",
    )


def _add(archive: zipfile.ZipFile, name: str, data: bytes, *, executable: bool = False) -> None:
    """Fixed time and mode: the hash of the code must not change with the checkout."""
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o755 if executable else 0o644) << 16
    archive.writestr(info, data)


def _too_large(folder: Path, files: dict[Path, int]) -> UsageError:
    most = sorted(files, key=lambda path: -files[path])[:3]
    largest = ", ".join(f"{path.relative_to(folder)} ({files[path] / 2**20:.0f} MiB)" for path in most)
    return UsageError(
        f"the code in {folder} is larger than {MOST_BYTES // 2**20} MiB; largest: {largest}",
        hint="move data out of the folder, or name a smaller one with --working-dir",
    )
