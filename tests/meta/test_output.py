"""Tables show what other programs said as it is."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.output import Format, show

SAID = {"message": "cannot read [/data/x]"}


@pytest.mark.parametrize("form", [Format.JSON, Format.YAML])
def test_what_json_does_not_know_is_null(form: Format, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    show({"loss": math.nan, "rows": [{"best": -math.inf}]}, form)
    out = capsys.readouterr().out
    read = json.loads(out, parse_constant=refuse) if form is Format.JSON else yaml.safe_load(out)
    assert read == {"loss": None, "rows": [{"best": None}]}


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("words", ["--help", "--version", "job run --help", "job list", "job list -o json"])
def test_a_reader_of_stdout_that_is_gone_is_no_failure(tmp_path: Path, unread: int, words: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "ops.cli", *words.split()],
        stdout=unread, stderr=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "STEADYRAY_HOME": str(tmp_path)},
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, "")


LOOKS_AFTER_A_RUN = """
import sys
from ops.cli.live import LiveView
from ops.output import note
from ops.policy.model import RunSnapshot, RunState
with LiveView("r") as view:
    for message in "ab":
        view.update(RunSnapshot("r", RunState.RUNNING, message=message))
note("run r succeeded")
sys.exit(7)
"""


def test_a_reader_of_stderr_that_is_gone_ends_nobody_who_looks_after_a_run(unread: int) -> None:
    answer = subprocess.run([sys.executable, "-c", LOOKS_AFTER_A_RUN], stderr=unread, check=False)
    assert answer.returncode == 7, "its own end"


def test_a_failure_keeps_its_exit_code_where_nobody_reads_why(tmp_path: Path, unread: int) -> None:
    words = [sys.executable, "-m", "ops.cli", "job", "status", "nope"]
    home = {**os.environ, "STEADYRAY_HOME": str(tmp_path)}
    assert subprocess.run(words, stdout=unread, stderr=unread, check=False, env=home).returncode == 1


def test_a_full_disk_behind_stdout_is_told_in_words(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            [sys.executable, "-m", "ops.cli", "job", "list", "-o", "json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "STEADYRAY_HOME": str(tmp_path)},
        )  # fmt: skip
    assert answer.returncode == 1
    assert answer.stderr.splitlines() == [
        "error: cannot write the output: No space left on device",
        "hint:  make room there, then type it again",
    ]


@pytest.mark.parametrize("data", [SAID, [SAID]], ids=["one", "rows"])
def test_a_message_with_brackets_is_shown_whole(data: Any, capsys: pytest.CaptureFixture[str]) -> None:
    show(data, Format.TABLE)
    assert "[/data/x]" in capsys.readouterr().out
