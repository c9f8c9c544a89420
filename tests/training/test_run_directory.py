"""Files of the run directory: whole or not there, one winner, and storage that fails for a while."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from steadyray import contract
from steadyray.contract import EventKind
from steadyray.folder import create_exclusive, write_atomic
from steadyray.rundir import RunWriter


def test_of_many_that_create_the_same_file_exactly_one_wins_and_its_content_is_there(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "claim.json"
    barrier = threading.Barrier(16)

    def claim(n: int) -> bool:
        barrier.wait()
        return create_exclusive(path, f"{n}".encode() * 1000)

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(claim, range(16)))
    assert sum(won) == 1
    assert path.read_text() == f"{won.index(True)}" * 1000
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_never_sees_half_a_file_while_two_writers_replace_it(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    contents = [b"a" * 50_000, b"b" * 70_000]
    write_atomic(path, contents[0])
    stop = threading.Event()

    def write(content: bytes) -> None:
        while not stop.is_set():
            write_atomic(path, content)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, content) for content in contents]
        seen = {path.read_bytes() for _ in range(200)}
        stop.set()
        for writer in writers:
            writer.result()
    assert seen <= set(contents)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    folder = tmp_path / "taken"
    folder.mkdir()
    (folder / "inside").write_text("x")
    with pytest.raises(OSError, match="taken"):
        write_atomic(folder, b"a file cannot replace a folder")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_events_are_numbered_in_order_and_never_changed(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, 2)
    for step in range(5):
        writer.event(EventKind.STEPS_DONE, generation=1, to_step=step)
    writer.close()
    events = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("events/*/*.json"))]
    assert [(e["seq"], e["data"]["to_step"], e["attempt"]) for e in events] == [
        (n + 1, n, 2) for n in range(5)
    ]
    assert {e["writer"] for e in events} == {writer.writer}


def test_two_writers_of_one_attempt_do_not_mix(tmp_path: Path) -> None:
    writers = [RunWriter(tmp_path, 1) for _ in range(2)]
    for writer in writers:
        writer.event(EventKind.DRIVER_STARTED)
        writer.close()
    assert len(list(tmp_path.glob("events/*/00000001.json"))) == 2


def test_storage_that_fails_for_a_while_holds_nobody_up_and_loses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.write_text("not a folder yet")
    writer = RunWriter(root, 1)
    writer.event(EventKind.DRIVER_STARTED)
    writer.progress(contract.Progress(step=7))
    writer.text("stacks.txt", "File train.py")
    while not writer.error:
        assert writer._thread.is_alive()
    root.unlink()
    writer.close(timeout=60)
    assert writer.error == ""
    assert len(list(root.glob("events/*/*.json"))) == 1
    assert json.loads((root / contract.progress(1)).read_text())["step"] == 7
    assert (root / contract.evidence(1, "stacks.txt")).read_text() == "File train.py"


def test_the_first_hint_about_a_failure_is_kept(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, 1)
    writer.failure(contract.Failure("UserError", "the cause"))
    writer.failure(contract.Failure("WorkerCrash", "a consequence"))
    writer.close()
    assert json.loads((tmp_path / contract.failure(1)).read_text())["message"] == "the cause"


def test_without_a_run_directory_nothing_is_written_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writer = RunWriter(None, 1)
    writer.event(EventKind.DRIVER_STARTED)
    writer.progress(contract.Progress(step=1))
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_the_value_of_a_secret_variable_is_written_into_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = 'quoted "and" long-4711'
    monkeypatch.setenv(contract.ENV_SECRETS, "HUB_TOKEN,UNSET")
    monkeypatch.setenv("HUB_TOKEN", secret)
    writer = RunWriter(tmp_path, 1)
    writer.failure(contract.Failure("UserError", f"bad token {secret}", traceback=f"f({secret!r})"))
    writer.event(contract.EventKind.RANK_LOST, reason=secret)
    writer.text("stacks.txt", f"token = {secret}")
    writer.close()
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == 3
    assert all("4711" not in p.read_text() and "[redacted]" in p.read_text() for p in files)
