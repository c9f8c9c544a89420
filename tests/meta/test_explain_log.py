"""`steadyray explain --log` on whatever a person may give it, from the command line down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops import cli

OOM = (
    'step 7 loss 0.3\nTraceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. token=swordfish-123\n"
)


def _explain(path: Path | str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert cli.run(["explain", "--log", str(path), "-o", "json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_log_is_explained_with_line_numbers_and_without_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.log").write_text(OOM)
    story = _explain(tmp_path / "x.log", capsys)
    assert (story["failure_class"], story["rule"], story["sure"]) == (
        "OutOfMemoryDevice",
        "DeviceMemory",
        "certain",
    )
    assert [fact["line"] for fact in story["evidence"]] == [4]  # type: ignore[attr-defined]
    assert "swordfish" not in json.dumps(story)
    assert cli.run(["explain", "--log", str(tmp_path / "x.log")]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("OutOfMemoryDevice", "line 4", "retry once", "DeviceMemory"))
    assert "swordfish" not in told


ODD = {
    "empty": b"",
    "one line without an end": b"step 5",
    "binary": bytes(range(256)) * 4000,
    "no line break at all": b"x" * 5_000_000,
    "zeros": b"\x00" * 100_000,
    "not utf-8": "Grüße, Schritt 5\n".encode("latin-1") * 10,
}


@pytest.mark.parametrize("name", ODD)
def test_what_tells_nothing_is_unknown_and_no_crash(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.log").write_bytes(ODD[name])
    story = _explain(tmp_path / "x.log", capsys)
    assert (story["failure_class"], story["culprit"]) == ("Unknown", {})


def test_windows_line_ends_and_progress_bars_hide_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = OOM.replace("\n", "\r\n").replace("step 7", "\r 1%|#| 1/9\r 2%|##| 2/9\rstep 7")
    (tmp_path / "x.log").write_bytes(text.encode())
    assert _explain(tmp_path / "x.log", capsys)["failure_class"] == "OutOfMemoryDevice"


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [(False, 1, "there is no file"), (True, 2, "is a folder")],
    ids=["missing", "folder"],
)
def test_what_is_no_file_is_said_in_one_line_with_a_hint(
    make: bool, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x"
    if make:
        path.mkdir()
    assert cli.run(["explain", "--log", str(path)]) == code
    told = capsys.readouterr()
    assert words in told.err
    assert "hint:" in told.err
    assert told.out == ""
