"""What a script may leave in its run directory, and a directory that is removed under its run."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from steadyray import contract

from conftest import Desk
from ops import submission
from ops.adapters.fakes import FakeClock, FakeCluster, FakeMaker
from ops.adapters.run_store import open_store
from ops.errors import RunGoneError, StoreError
from ops.orphans import end_jobs
from ops.policy.model import JobStatus
from ops.ports import RunStore
from ops.spec import RunSpec
from ops.supervise import STORE_PATIENCE_SECONDS, Supervisor


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # an address has room for 107 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def _deep(path: Path) -> None:
    """Deeper than any path may be long."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)
    for _ in range(30):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    Path("file").touch()
    os.fchdir(here)
    os.close(here)


def _named(name: bytes) -> Callable[[Path], None]:
    return lambda path: Path(os.fsdecode(os.path.join(os.fsencode(path.parent), name))).write_bytes(b"x")


ODD: dict[str, Callable[[Path], None]] = {
    "control characters": _named(b"a\x01\x1b[2J\n\tb"),
    "bad UTF-8": _named(b"model-\xff\xfe.pt"),
    "a staged upload by its name": _named(b"state.pt#17"),
    "a name for Windows": _named(b"a\\b:c*?.pt"),
    "only dots and spaces": _named(b" . ..."),
    "as long as a name may be": _named(b"n" * 255),
    "folder of a bad name": lambda path: Path(os.fsdecode(bytes(path.parent) + b"/\xfd\n")).mkdir(),
    "symlink loop": lambda path: path.symlink_to(path.name),
    "symlink to its own parent": lambda path: path.symlink_to(".."),
    "symlink to nothing": lambda path: path.symlink_to("/nothing/there"),
    "symlink out of it": lambda path: path.symlink_to("/proc"),
    "fifo": lambda path: os.mkfifo(path),
    "socket": _socket,
    "deep tree": _deep,
    "forbidden folder": lambda path: path.mkdir(mode=0),
}
PLACES = ("", "attempts", "attempts/0001", "attempts/0001/ranks", "actions", "checkpoints", "events", "own")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def supervisor(tmp_path: Path, clock: FakeClock, cluster: FakeCluster) -> Supervisor:
    spec = RunSpec(name="digits", entrypoint=("python", "train.py"), code_hash="c0", created=clock.now())
    store = open_store(str(tmp_path / "runs"), "digits")
    assert submission.create(store, clock, spec, b"zip")
    return Supervisor(spec, store, FakeMaker(cluster), clock)


def running(supervisor: Supervisor, cluster: FakeCluster) -> str:
    """A run whose first job runs; gives the job's id."""
    ticks(supervisor, 3)
    [job] = cluster.jobs
    cluster.jobs[job] = replace(cluster.jobs[job], status=JobStatus.RUNNING)
    supervisor.tick()
    return job


def ticks(supervisor: Supervisor, count: int) -> None:
    for _ in range(count):
        supervisor.clock.sleep(supervisor.tick().wake_after)


def make_odd(folder: Path, kind: str) -> None:
    for place in PLACES:
        (folder / place).mkdir(parents=True, exist_ok=True)
        ODD[kind](folder / place / "odd")


@pytest.mark.parametrize("kind", ODD)
def test_whatever_a_script_leaves_anywhere_the_run_is_looked_after_and_can_be_stopped(
    supervisor: Supervisor, cluster: FakeCluster, kind: str
) -> None:
    job = running(supervisor, cluster)
    make_odd(Path(supervisor.store.url), kind)
    ticks(supervisor, 3)
    assert supervisor.gatherer.look().attempt == 1
    cluster.jobs[job] = replace(cluster.jobs[job], status=JobStatus.FAILED, message="Driver died")
    ticks(supervisor, 3)
    supervisor.record.create(contract.STOP_REQUEST, {"time": supervisor.clock.now()})
    for _ in range(20):
        tick = supervisor.tick()
        supervisor.clock.sleep(tick.wake_after)
        cluster.jobs = {k: replace(v, status=JobStatus.STOPPED) for k, v in cluster.jobs.items()}
        if tick.finished:
            break
    assert tick.finished


@pytest.mark.parametrize("kind", ODD)
def test_a_list_is_printable_and_has_all_that_is_whole(tmp_path: Path, kind: str) -> None:
    store = open_store(str(tmp_path), "run")
    store.put("attempts/0001/lease.json", b"{}")
    make_odd(Path(store.url), kind)
    found = store.list()
    assert found["attempts/0001/lease.json"] == 2
    assert all(path.isprintable() for path in found)
    assert all(store.get(path) is None or path in found for path in found)
    assert store.list("attempts/0001")["attempts/0001/lease.json"] == 2


@pytest.mark.parametrize("name", ["supervisor.json", "attempts/0001/progress.json", "stop.json"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "symlink loop", "symlink to nothing"])
def test_what_stands_in_the_place_of_a_record_is_never_waited_for(
    tmp_path: Path, name: str, kind: str
) -> None:
    store = open_store(str(tmp_path), "run")
    path = Path(store.url) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    ODD[kind](path)
    assert store.get(name) is None
    assert not store.create(name, b"1")
    store.put(name, b"2")
    assert store.get(name) == b"2"


def test_a_file_in_the_making_is_nobody_s_state(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), "run")
    (Path(store.url) / ".supervisor.json.0a1b2c3d").touch()
    assert store.list() == {}


def _removed(folder: Path) -> None:
    shutil.rmtree(folder)


def _made_again_by_the_job(folder: Path) -> None:
    shutil.rmtree(folder)
    (folder / "attempts/0001").mkdir(parents=True)
    (folder / contract.progress(1)).write_text('{"step": 5}')


@pytest.mark.parametrize("lost", [_removed, _made_again_by_the_job])
def test_a_directory_removed_under_its_run_is_named_with_what_to_type(
    supervisor: Supervisor, cluster: FakeCluster, lost: Callable[[Path], None]
) -> None:
    job = running(supervisor, cluster)
    folder = Path(supervisor.store.url)
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    lost(folder)
    said = supervisor.tick().snapshot.message
    assert "run digits has lost its directory" in said
    assert str(folder) in said
    assert "steadyray job stop digits" in said
    ticks(supervisor, 3)
    assert not (folder / contract.SPEC).exists()
    assert list(cluster.jobs) == [job], "nothing is submitted on the word of an empty folder"
    shutil.rmtree(folder, ignore_errors=True)
    kept.rename(folder)
    assert "lost" not in supervisor.tick().snapshot.message


def test_one_that_stays_away_ends_the_supervisor_with_the_same_words(
    supervisor: Supervisor, cluster: FakeCluster
) -> None:
    running(supervisor, cluster)
    shutil.rmtree(supervisor.store.url)
    supervisor.tick()
    supervisor.clock.sleep(STORE_PATIENCE_SECONDS + 1)
    with pytest.raises(RunGoneError, match="run digits has lost its directory") as caught:
        supervisor.tick()
    assert "steadyray job stop digits" in caught.value.hint
    assert not Path(supervisor.store.url).exists()


def test_its_job_is_found_on_the_cluster_and_ended_and_no_other(
    supervisor: Supervisor, cluster: FakeCluster
) -> None:
    job = running(supervisor, cluster)
    url = supervisor.store.url
    shutil.rmtree(url)
    assert end_jobs(cluster, f"{url}-other") == ()
    assert end_jobs(cluster, url) == (job,)
    assert cluster.jobs[job].status is JobStatus.STOPPED
    assert end_jobs(cluster, url) == ()


def _operations(store: RunStore) -> Iterator[Callable[[], object]]:
    yield lambda: store.create("a", b"1")
    yield lambda: store.put("a", b"1")
    yield lambda: store.get("a")
    yield lambda: store.list()
    yield lambda: store.delete("a")


def test_every_operation_says_that_the_directory_is_gone_and_none_makes_it_again(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), "run")
    shutil.rmtree(store.url)
    for operation in _operations(store):
        with pytest.raises(StoreError, match="run run has lost its directory"):
            operation()
    assert not Path(store.url).exists()


SAID = '"step": 3, "message": "\\ud800"'
WRONG = {
    "attempts/0001/lease.json": '{"submission_id": 7}',
    "attempts/0001/started.json": '{"pid": null}',
    "attempts/0001/progress.json": "{"
    + SAID
    + ', "loss": "x", "ranks": 1, "metrics": [], "total_steps": {}}',
    "attempts/0001/failure.json": '{"failure_class": 1, "message": []}',
    "attempts/0001/exceptions.json": '{"exceptions": [null, {"kind": null}]}',
    "actions/x.json": '{"attempt": "one"}',
    "supervisor.json": '{"host": 1, "pid": []}',
    "stop.json": "[]",
    "events/supervisor-x/00000001.json": '{"kind": "Waiting", "time": null, "data": 1}',
    "events/driver-0001-x/00000001.json": '{"kind": "GenerationStarted", "data": {"ranks": 5}}',
}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, tmp_path / "home", "none")
    spec = RunSpec(name="odd", entrypoint=("python", "t.py"), code_hash="c0", created=1.0, cluster="none")
    store = open_store(str(made.home / "runs"), "odd")
    assert submission.create(store, FakeClock(), spec, b"zip")
    for path, content in WRONG.items():
        store.put(path, content.encode())
    yield made
    made.close()


def test_every_command_that_tells_of_a_run_passes_over_records_of_wrong_types(desk: Desk) -> None:
    for words in (("job", "status", "odd"), ("job", "list"), ("job", "explain", "odd"), ("report", "odd")):
        answer = desk.run(*words, seconds=60)
        assert answer.returncode == 0, (words, answer.stderr)
        assert "odd" in answer.stdout


def test_a_stop_is_noted_over_a_damaged_request(desk: Desk) -> None:
    desk.run("job", "stop", "odd", seconds=60)  # there is no cluster to carry it out
    assert isinstance(json.loads((desk.directory("odd") / contract.STOP_REQUEST).read_text()), dict)
