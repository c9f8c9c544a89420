"""`steadyray explain --log` on whatever a person may give it, from the command line down."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ops import cli
from ops.log_extract import read

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


def test_a_rare_line_in_the_middle_of_a_flood_of_others_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flood = "".join(
        f"ERROR {i:x} request {i * 7919:x} failed, Connection reset by peer\n" for i in range(40_000)
    )
    odd = "".join(f"WARNING Error in {chr(103 + i % 20) * (i % 97 + 1)}\n" for i in range(2_000))
    xid = "Nov 30 10:00:01 gpu-7 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    (tmp_path / "x.log").write_text(flood + odd + xid + odd + flood)
    story = _explain(tmp_path / "x.log", capsys)
    assert (story["rule"], story["culprit"]) == ("DeviceFailed", {"host": "gpu-7"})
    assert story["evidence"][0]["line"] == 42_001  # type: ignore[index]


def test_what_follows_a_traceback_far_from_the_end_is_kept_with_it() -> None:
    quiet = "".join(f"fetched shard {i}\n" for i in range(50_000))
    trace = "Traceback (most recent call last):\n" + '  File "a.py", line 1\n' * 60 + "KeyError: 'x'\n"
    text, numbers = read(io.BytesIO((quiet + trace + quiet).encode())).text()
    kept = dict(zip(numbers, text.split("\n"), strict=True))
    assert kept[50_001].startswith("Traceback")
    assert kept[50_062] == "KeyError: 'x'"
    assert len(kept) < 10_000


SIZE = 100_000_000
MEASURE = """
import re, sys, time
from ops import explain_log
began = time.process_time()
with open(sys.argv[1], "rb") as stream:
    lines = sum(1 for line in stream if b"step" in line)
read, began = time.process_time() - began, time.process_time()
with open(sys.argv[1], "rb") as stream:
    story = explain_log.explain(stream, "x")
used = time.process_time() - began
with open("/proc/self/status") as status:  # ru_maxrss would begin with that of the process that forked
    peak = re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]
print(story["failure_class"], story["evidence"][0]["line"], used / read, used, peak)
"""


def test_a_hundred_megabytes_cost_a_few_times_what_reading_their_lines_does_and_little_memory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.log"
    block = "".join(
        f"(Rank pid={2000 + i % 8}, ip=10.0.0.{i % 8}) 2026-11-30 10:00:00,118 step={i} loss={i % 97 / 100} "
        f"id={i * 7919:x}\n"
        for i in range(20_000)
    ).encode()
    xid = b"Nov 30 10:00:01 gpu-7 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n"
    with path.open("wb") as stream:
        for i in range(SIZE // len(block) + 1):
            stream.write(block + (xid if i == 20 else b""))
    ran = subprocess.run(
        [sys.executable, "-P", "-c", MEASURE, path], check=True, capture_output=True, text=True
    )
    kind, line, ratio, seconds, peak = ran.stdout.split()
    assert (kind, int(line)) == ("HardwareFault", 21 * 20_000 + 1)
    assert float(ratio) < 10, f"{seconds} s of CPU, {ratio} times what reading the lines takes"
    assert int(peak) < 100_000, f"{peak} KiB"
