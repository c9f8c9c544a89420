"""What travels to the cluster: the same bytes for the same code, no rubbish, no surprise in size."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from ops import packing
from ops.errors import UsageError


def names(data: bytes) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return set(archive.namelist())


def test_the_same_files_give_the_same_bytes_whenever_and_wherever_they_lie(tmp_path: Path) -> None:
    packed = []
    for number, name in enumerate(("one", "two")):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        for path in ("b.py", "a.py", "sub/c.py"):
            (folder / path).write_text(path)
            os.utime(folder / path, (1000 + number, 1000 + number))
        packed.append(packing.pack(folder))
    assert packed[0] == packed[1]


def test_a_changed_file_changes_the_hash(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    before = packing.pack(tmp_path).code_hash
    (tmp_path / "a.py").write_text("2")
    assert packing.pack(tmp_path).code_hash != before


def test_histories_environments_and_caches_stay_at_home(tmp_path: Path) -> None:
    for path in (
        ".git/config",
        ".venv/bin/python",
        ".steadyray/runs/x/spec.json",
        "__pycache__/a.pyc",
        "a.pyc",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    (tmp_path / "train.py").write_text("x")
    data = packing.pack(tmp_path).data
    entry = {f"{packing.ENTRY_FOLDER}/{name}" for name in packing.entry_sources()}
    assert names(data) == {"train.py", *entry}


def test_a_folder_that_is_too_large_is_refused_with_the_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_BYTES", 1000)
    (tmp_path / "data.bin").write_bytes(os.urandom(5000))
    with pytest.raises(UsageError, match=r"data\.bin") as caught:
        packing.pack(tmp_path)
    assert "--working-dir" in caught.value.hint


def test_a_file_that_is_too_large_is_refused_without_being_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(UsageError, match=r"huge\.bin"):
        packing.pack(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no folder .*nope"):
        packing.pack(tmp_path / "nope")


def test_a_file_whose_name_is_not_utf_8_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    with pytest.raises(UsageError, match=r"caf\\xe9\.txt along: its name is not UTF-8"):
        packing.pack(tmp_path)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "memory").symlink_to("/proc/self/mem")  # cannot be read from its start, not even by root
    with pytest.raises(UsageError, match="memory along: Input/output error"):
        packing.pack(tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        *(".env", ".env.local", "tls/server.pem", "tls/server.key", "id_rsa", "id_rsa.pub", "id_ed25519"),
        *(".netrc", ".git-credentials", ".pypirc", ".aws/credentials", ".ssh/config", ".kube/config"),
        *(".docker/config.json", "gcloud/application_default_credentials.json", "service-account-x.json"),
    ],
)
def test_what_usually_holds_a_secret_stays_at_home(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("x")
    (tmp_path / "environment.py").write_text("x")
    package = packing.pack(tmp_path)
    kept = {name for name in names(package.data) if not name.startswith(packing.ENTRY_FOLDER)}
    assert kept == {"environment.py"}
    [told] = package.left_out
    assert "usually holds secrets" in told


def test_a_package_that_is_a_link_travels_as_what_it_leads_to(tmp_path: Path) -> None:
    outside, project = tmp_path / "shared/common", tmp_path / "project"
    outside.mkdir(parents=True)
    project.mkdir()
    (outside / "__init__.py").write_text("x = 1")
    (project / "common").symlink_to(outside)
    package = packing.pack(project)
    assert "common/__init__.py" in names(package.data)
    (project / "common").unlink()
    (project / "common").mkdir()
    (project / "common/__init__.py").write_text("x = 1")
    assert packing.pack(project).code_hash == package.code_hash, "the code is the same, however it lies there"


def test_links_in_a_circle_and_to_nothing_are_told_and_end_no_walk(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "mod.py").write_text("")
    (tmp_path / "a/b").symlink_to(tmp_path / "b")
    (tmp_path / "b/a").symlink_to(tmp_path / "a")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "data").symlink_to("/nonexistent/data")
    package = packing.pack(tmp_path)
    kept = {name for name in names(package.data) if not name.startswith(packing.ENTRY_FOLDER)}
    assert kept == {"a/mod.py", "b/mod.py", "a/b/mod.py", "b/a/mod.py"}
    assert {"data (a link to nothing)", "up (a link in a circle)"} <= set(package.left_out)


def test_the_folder_is_walked_once_for_what_travels_and_for_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks, walk = [], os.walk
    monkeypatch.setattr(os, "walk", lambda top, **how: walks.append(top) or walk(top, **how))
    (tmp_path / "train.py").write_text("x")
    (tmp_path / ".env").write_text("x")
    package = packing.pack(tmp_path)
    assert walks == [tmp_path]
    assert "train.py" in names(package.data)
    assert package.left_out == (".env (usually holds secrets)",)
