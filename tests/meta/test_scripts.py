"""The scripts behind the Makefile: what they say when something is missing. That they work, CI shows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has what every machine has, and no Python that fits."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "cat", "mkdir", "mktemp"):
        (tools / name).symlink_to(next(p for d in ("/usr/bin", "/bin") if (p := Path(d, name)).exists()))
    for name in ("python3", "python3.13"):
        (tools / name).write_text("#!/bin/sh\nexit 127\n")
        (tools / name).chmod(0o755)
    return {"PATH": str(tools), "HOME": str(tmp_path)}


def _run(root: Path, script: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(root / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)


def test_set_up_without_a_fitting_python_says_what_to_type(root: Path, bare: dict[str, str]) -> None:
    run = _run(root, "setup", env=bare)
    assert run.returncode == 1
    assert "no Python 3.11, 3.12 or 3.13 on PATH" in run.stderr
    assert "make setup PYTHON=" in run.stderr


def test_set_up_refuses_a_python_that_was_named_and_does_not_fit(root: Path, bare: dict[str, str]) -> None:
    run = _run(root, "setup", env={**bare, "PYTHON": "python3.13"})
    assert run.returncode == 1
    assert "PYTHON=python3.13 is not Python 3.11, 3.12 or 3.13" in run.stderr


def test_an_unknown_group_of_tests_is_refused_with_the_groups_that_there_are(root: Path) -> None:
    run = _run(root, "test", "training-fast", env=dict(os.environ))
    assert run.returncode == 1
    assert "no group of tests called training-fast" in run.stderr
    assert "meta" in run.stderr


def test_a_group_that_fails_fails_the_command_and_names_itself(root: Path) -> None:
    run = _run(root, "test", "meta", env={**os.environ, "PYTEST_ARGS": "-q -k no_test_has_this_name"})
    assert run.returncode == 1
    assert "failed groups: meta" in run.stderr
