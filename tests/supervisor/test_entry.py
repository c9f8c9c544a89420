"""The entrypoint's wrapper, as real processes: one start an attempt, the right checkpoint, no leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from steadyray import entry as wrapper

from conftest import wait_for
from ops.packing import ENTRY_FOLDER, entry_sources

SHOW = (
    "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('STEADYRAY')}))"
)


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """The wrapper as a job gets it: two files in a folder, no package installed around them."""
    folder = tmp_path / "code" / ENTRY_FOLDER
    folder.mkdir(parents=True)
    for name, data in entry_sources().items():
        (folder / name).write_bytes(data)
    return folder / "entry.py"


def start(entry: Path, run_dir: Path, attempt: int, *command: str) -> subprocess.Popen[str]:
    # -S: without the packages of this environment, as on an image that has no steadyray
    words = [sys.executable, "-S", str(entry), "run", str(attempt), str(run_dir), "--", *command]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STEADYRAY")}
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=clean
    )


def checkpoint(run_dir: Path, name: str, step: int, size: int, said: int) -> None:
    folder = run_dir / "checkpoints" / name
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(b"x" * size)
    (folder / "MANIFEST.json").write_text(json.dumps({"step": step, "files": {"state.pt": {"bytes": said}}}))


def test_the_command_gets_its_contract_and_the_newest_whole_checkpoint(shipped: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    checkpoint(run_dir, "0000000010-0001-0001", 10, 5, 5)
    checkpoint(run_dir, "0000000020-0001-0001", 20, 4, 5)
    (run_dir / "checkpoints" / "0000000030-0001-0001").mkdir()
    out, _ = start(shipped, run_dir, 2, sys.executable, "-c", SHOW).communicate()
    assert json.loads(out) == {
        "STEADYRAY_RUN": "run",
        "STEADYRAY_ATTEMPT": "2",
        "STEADYRAY_RUN_DIR": str(run_dir),
        "STEADYRAY_RESUME_FROM": str(run_dir / "checkpoints" / "0000000010-0001-0001"),
    }


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), 3),
        (("no-such-command",), 127),
        (("/etc/hostname",), 126),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), -9),
    ],
)
def test_the_exit_code_is_the_commands_own(
    shipped: Path, tmp_path: Path, command: tuple[str, ...], code: int
) -> None:
    process = start(shipped, tmp_path / "run", 1, *command)
    process.communicate()
    assert process.returncode == code


def test_of_eight_starts_of_one_attempt_one_runs_and_seven_leave(shipped: Path, tmp_path: Path) -> None:
    processes = [start(shipped, tmp_path / "run", 1, sys.executable, "-c", "print('ran')") for _ in range(8)]
    results = [(p.communicate(), p.returncode) for p in processes]
    assert [out.strip() for (out, _), code in results if code == 0] == ["ran"]
    losers = [err for (_, err), code in results if code == 75]
    assert len(losers) == 7
    assert all("already started by another process" in err for err in losers)


def test_a_driver_left_of_an_earlier_attempt_is_ended_and_nobody_else(shipped: Path, tmp_path: Path) -> None:
    """Ray leaves a driver running for minutes whose head died alone; two at once would be two writers."""
    run_dir = tmp_path / "run"
    forever = (sys.executable, "-c", "import time; time.sleep(600)")
    old = start(shipped, run_dir, 1, *forever)
    wait_for((run_dir / "attempts/0001/started.json").exists, "the first start")
    stranger = subprocess.Popen(forever, start_new_session=True)
    try:
        # a record whose pid now belongs to another process, as after a reboot or a long time
        reused = run_dir / "attempts/0002/started.json"
        reused.parent.mkdir()
        record = json.loads((run_dir / "attempts/0001/started.json").read_text())
        reused.write_text(json.dumps({**record, "pid": stranger.pid}))
        new = start(shipped, run_dir, 3, sys.executable, "-c", "print('ran')")
        out, _ = new.communicate()
        assert out.strip() == "ran"
        assert old.wait(timeout=10) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        old.communicate()


def test_a_lineage_that_was_given_up_is_not_resumed(tmp_path: Path) -> None:
    """Attempt 2 rolled back to step 50: its step 60 is newer than attempt 1's step 100."""
    for name in ("0000000100-0001-0001", "0000000060-0002-0001", "notes"):
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "state").write_text("x")
        (folder / "MANIFEST.json").write_text('{"files": {"state": {"bytes": 1}}}')
    found = wrapper.newest_checkpoint(tmp_path)
    assert found is not None
    assert found.name == "0000000060-0002-0001"


@pytest.mark.parametrize("odd", [b"null", b"[]", b'{"pid": null}', b'{"pid": 1e999}', b"[" * 100_000])
def test_a_damaged_mark_of_an_earlier_attempt_keeps_none_from_its_start(tmp_path: Path, odd: bytes) -> None:
    mark = tmp_path / "attempts/0001/started.json"
    mark.parent.mkdir(parents=True)
    mark.write_bytes(odd)
    wrapper.end_leftovers(tmp_path, 2)
