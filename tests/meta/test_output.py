"""Tables show what other programs said as it is."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
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
