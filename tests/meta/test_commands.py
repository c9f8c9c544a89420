"""Every command and option explains itself, and docs/cli.md is what they say."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ops import cli


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{path} {name}")


COMMANDS = dict(_commands(typer.main.get_command(cli.app), "steadyray"))
LEAVES = {path: command for path, command in COMMANDS.items() if not getattr(command, "commands", {})}


def test_there_are_commands_to_look_at() -> None:
    assert {"steadyray cluster up", "steadyray node remove", "steadyray job run", "steadyray report"} <= set(
        LEAVES
    )


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_a_help_text(path: str) -> None:
    assert (COMMANDS[path].help or "").strip()


@pytest.mark.parametrize("path", COMMANDS)
def test_each_option_and_argument_of_a_command_has_a_help_text(path: str) -> None:
    silent = [p.name for p in COMMANDS[path].params if not (getattr(p, "help", None) or "").strip()]
    assert silent == []


@pytest.mark.parametrize("path", [path for path, command in LEAVES.items() if not command.hidden])
def test_the_help_of_a_command_shows_two_examples(path: str) -> None:
    text = " ".join(LEAVES[path].help.split())
    examples = text.partition("Example")[2]
    assert examples.count("steadyray ") + examples.count("`… ") >= 2


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"steadyray {metadata.version('steadyray-ops')}\n"


def test_a_bug_is_reported_with_command_and_versions_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError("API_TOKEN=swordfish-1")

    monkeypatch.setenv("STEADYRAY_HOME", str(tmp_path))
    monkeypatch.setattr(cli, "app", broken)
    words = ["job", "run", "--env", "API_TOKEN=swordfish-2", "--", "train", "--password", "swordfish-3"]
    assert cli.run(words) == cli.EXIT_BUG
    told = capsys.readouterr().err
    (report,) = (tmp_path / "bugs").iterdir()
    text = report.read_text()
    assert str(report) in told
    assert "the repository's issues page" in told
    assert "swordfish" not in text + told
    assert "command: steadyray job run --env" in text
    assert f"python: {platform.python_version()}" in text
    assert all(f"{package}: " in text for package in cli.PACKAGES)
    assert "ZeroDivisionError" in text


def test_the_reference_is_what_the_commands_say(root: Path) -> None:
    made = subprocess.run([root / "scripts/docs"], check=True, capture_output=True, text=True).stdout
    assert (root / "docs/cli.md").read_text() == made, "run `make docs`"
