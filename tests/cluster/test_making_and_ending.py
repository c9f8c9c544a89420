"""Clusters that are made beside others, on a machine that is not ready, over stale state; and what is left
after."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from cluster_support import until

from ops import submission
from ops.adapters import local_cluster
from ops.adapters.clock import SystemClock
from ops.adapters.clusters import LocalMaker
from ops.adapters.local_cluster import ClusterConnection, ClusterFolder
from ops.adapters.local_host import Host, this_host
from ops.adapters.local_nodes import KEPT_FOLDERS, FailedStart
from ops.adapters.local_processes import MARKER, ProcessId, end, marker
from ops.adapters.run_store import open_store
from ops.errors import ClusterError, NotFoundError, OpsTimeoutError, UnreachableError
from ops.ports import Remains, RunStore
from ops.profile import Profile
from ops.spec import RunSpec

SmallProfile = Callable[[dict[str, Any]], Profile]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this test's own."""
    monkeypatch.setenv("STEADYRAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@contextlib.contextmanager
def at_home(cluster: ClusterConnection) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEADYRAY_HOME", str(cluster.folder.parents[1]))
        yield


@contextlib.contextmanager
def twin(home: Path, small_profile: SmallProfile) -> Iterator[ClusterConnection]:
    """A cluster called "twin" in a home of its own, whatever becomes of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEADYRAY_HOME", str(home))
        try:
            cluster = local_cluster.up(small_profile({"name": "twin"}))
        except BaseException:
            local_cluster.down("twin")
            raise
    try:
        yield cluster
    finally:
        with at_home(cluster):
            local_cluster.down("twin")


def marked_anywhere(uuid: str) -> list[int]:
    """Pids with the uuid in their environment, by a way of its own: straight from /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(entry.startswith(f"{MARKER}={uuid}".encode()) for entry in environment):
            found.append(int(path.parent.name))
    return found


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def listening(pids: list[int]) -> list[tuple[str, int]]:
    """What these processes listen on."""
    return [
        (c.laddr.ip, c.laddr.port)
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.pid in pids
    ]


def free(address: tuple[str, int]) -> bool:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


@pytest.mark.ray
def test_two_clusters_of_one_name_do_not_touch_and_down_leaves_nothing(
    tmp_path: Path, small_profile: SmallProfile
) -> None:
    with twin(tmp_path / "a", small_profile) as first, twin(tmp_path / "b", small_profile) as second:
        uuid = cluster_uuid(first)
        pids, before = marked_anywhere(uuid), shared_memory()
        ports = listening(pids)
        assert len(pids) > 5
        assert len(ports) > 3

        with at_home(first):
            assert local_cluster.down("twin") >= len(pids) - 5  # some end with their parents
            assert local_cluster.down("twin") == 0
        assert marked_anywhere(uuid) == []
        assert not first.temp_dir.exists()
        assert not first.folder.exists()
        assert [address for address in ports if not free(address)] == []
        assert shared_memory() <= before

        assert local_cluster.answers(second)
        assert len(marked_anywhere(cluster_uuid(second))) > 5


@pytest.mark.ray
def test_up_after_everything_was_killed_makes_a_fresh_cluster(
    tmp_path: Path, small_profile: SmallProfile
) -> None:
    with twin(tmp_path / "a", small_profile) as killed, at_home(killed):
        old = cluster_uuid(killed)
        while pids := marked_anywhere(old):  # the keeper among them, so nothing comes back
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            until("all are gone", lambda: not set(marked_anywhere(old)) & set(pids))
        said: list[str] = []
        again = local_cluster.up(small_profile({"name": "twin"}), said.append)
        assert local_cluster.answers(again)
        assert cluster_uuid(again) != old
        assert "ended without `cluster down`" in said[0]
        assert not killed.temp_dir.exists()


def made_by(host: Host, profile: Profile) -> ClusterFolder:
    """The files of a cluster as `up` writes them, without processes that this host could see."""
    folder = local_cluster.folder_of(profile.name)
    folder.path.mkdir(parents=True)
    folder.profile_file.write_text(yaml.safe_dump(profile.model_dump()))
    folder.token_file.write_text("token")
    cluster = {
        "name": profile.name,
        "uuid": "0" * 32,
        "host": asdict(host),
        "address": "http://127.0.0.1:9",
        "gcs_address": "127.0.0.1:9",
        "temp_dir": str(folder.path / "temp"),
    }
    folder.cluster_file.write_text(json.dumps(cluster))
    return folder


HERE = this_host()
OTHERS = {
    "another machine": Host("host-a", "5a3c", HERE.pid_namespace),
    "another container of this machine": replace(HERE, pid_namespace=HERE.pid_namespace + 1),
    "the same, with another name": Host("host-a", HERE.boot_id, HERE.pid_namespace + 1),
}


@pytest.mark.parametrize("host", OTHERS.values(), ids=OTHERS)
def test_a_cluster_of_another_host_is_never_gone_and_neither_made_nor_ended_here(
    home: Path, small_profile: SmallProfile, host: Host
) -> None:
    """B sees none of A's processes, and must not take that for their end."""
    profile = small_profile({"name": "theirs"})
    folder = made_by(host, profile)
    before = {path: path.read_text() for path in folder.path.iterdir()}
    assert LocalMaker("theirs").remains() is Remains.KEPT
    for command in (lambda: local_cluster.up(profile), lambda: local_cluster.down("theirs")):
        with pytest.raises(ClusterError, match=f"belongs to host {host.name}") as error:
            command()
        assert "cluster down --name theirs" in error.value.hint
    with pytest.raises(UnreachableError, match=f"belongs to host {host.name}"):
        LocalMaker("theirs").connect()
    assert {path: path.read_text() for path in folder.path.iterdir()} == before


@pytest.mark.parametrize(
    "host", [replace(HERE, boot_id="before"), replace(HERE, name="renamed")], ids=["rebooted", "renamed"]
)
def test_what_a_reboot_left_is_stale_and_a_new_name_changes_nothing(
    home: Path, small_profile: SmallProfile, host: Host
) -> None:
    folder = made_by(host, small_profile({"name": "stale"}))
    assert LocalMaker("stale").remains() is Remains.NOTHING
    assert local_cluster.down("stale") == 0
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("living", "remains", "looks"),
    [
        ((), Remains.NOTHING, 1),
        (("cpu-1",), Remains.UNKEPT, 1),
        (("keeper",), Remains.KEPT, 0),
        (("keeper", "cpu-1"), Remains.KEPT, 0),
    ],
)
def test_what_remains_of_a_silent_cluster_takes_one_look_at_the_processes_at_most(
    home: Path,
    small_profile: SmallProfile,
    monkeypatch: pytest.MonkeyPatch,
    living: tuple[str, ...],
    remains: Remains,
    looks: int,
) -> None:
    folder, own = made_by(HERE, small_profile({"name": "silent"})), uuid.uuid4().hex
    folder.cluster_file.write_text(json.dumps({**folder.cluster(), "uuid": own}))
    looked, look = [], psutil.process_iter
    monkeypatch.setattr(psutil, "process_iter", lambda: looked.append(1) or look())
    with contextlib.ExitStack() as stack:
        for instance in living:
            named = {**os.environ, MARKER: marker(own, instance)}
            child = stack.enter_context(subprocess.Popen(["sleep", "60"], env=named))
            stack.callback(child.kill)
            if instance == "keeper":
                keeper = ProcessId.of(psutil.Process(child.pid))
                folder.keeper_file.write_text(json.dumps(asdict(keeper)))
        assert LocalMaker("silent").remains() is remains
    assert len(looked) == looks


def test_an_up_that_is_refused_keeps_what_there_is_to_try_again(
    home: Path, small_profile: SmallProfile
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        folder = made_by(HERE, small_profile({"name": "again", "head": {"dashboard_port": port}}))
        before = {path: path.read_text() for path in folder.path.iterdir()}
        for _ in range(2):
            with pytest.raises(ClusterError, match=f"port {port}"):
                LocalMaker("again").make()
    assert {path: path.read_text() for path in folder.path.iterdir()} == before
    assert LocalMaker("again").remains() is Remains.NOTHING


def test_a_taken_port_is_named_and_nothing_is_started(home: Path, small_profile: SmallProfile) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = small_profile({"name": "refused", "head": {"dashboard_port": port}})
        with pytest.raises(
            ClusterError, match=f"port {port} .dashboard_port. is taken by pid {os.getpid()}"
        ) as error:
            local_cluster.up(wanted)
    assert "--free-ports" in error.value.hint
    assert_nothing(home)


@pytest.mark.parametrize(
    ("overrides", "message", "hint"),
    [
        ({"groups": {"cpu": {"min": 10**6, "max": 10**6}}}, "too little memory", "lower `min`"),
        ({"head": {"object_store_mib": 10**9}}, "too little shared memory", "--shm-size"),
    ],
)
def test_a_machine_that_is_too_small_is_told_before_anything_starts(
    home: Path, small_profile: SmallProfile, overrides: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(ClusterError, match=message) as error:
        local_cluster.up(small_profile({"name": "refused", **overrides}))
    assert hint in error.value.hint
    assert_nothing(home)


def test_a_home_that_cannot_be_written_is_told_with_the_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, small_profile: SmallProfile
) -> None:
    monkeypatch.setenv("STEADYRAY_HOME", "/proc/home")
    with pytest.raises(ClusterError, match="cannot write to /proc/home") as error:
        local_cluster.up(small_profile({"name": "refused"}))
    assert "STEADYRAY_HOME" in error.value.hint


def test_a_deep_temporary_folder_is_refused_for_its_sockets(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_profile: SmallProfile
) -> None:
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(ClusterError, match="too deep") as error:
        local_cluster.up(small_profile({"name": "refused"}))
    assert "TMPDIR" in error.value.hint


@pytest.mark.ray
def test_a_head_that_does_not_start_leaves_nothing_but_its_log(
    home: Path, small_profile: SmallProfile
) -> None:
    wanted = small_profile({"name": "broken", "environment": {"RAY_AUTH_TOKEN_PATH": "/proc/none"}})
    with pytest.raises(ClusterError, match="the head did not start"):
        local_cluster.up(wanted)
    left = sorted(path.name for path in (home / "clusters/broken").iterdir())
    assert [name for name in left if not name.endswith(".log")] == ["launcher.yaml", "profile.yaml"]
    assert local_cluster.find("broken") is None
    assert LocalMaker("broken").remains() is Remains.NOTHING, "a supervisor may try again"


def test_of_two_commands_at_once_the_second_waits_and_finds_what_the_first_has_made(
    home: Path, small_profile: SmallProfile
) -> None:
    wanted = small_profile({"name": "twice"})
    said: list[str] = []
    try:
        with ThreadPoolExecutor(2) as pool:
            first, second = [pool.submit(local_cluster.up, wanted, said.append) for _ in range(2)]
        assert first.result() == second.result()
        assert said == ["another command is making or ending cluster 'twice': waiting for it"]
    finally:
        local_cluster.down("twice")


def test_who_does_not_wait_for_another_command_is_told(home: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    other = context.Process(target=hold_lock, args=("busy", held, done))
    other.start()
    assert held.wait(20)
    try:
        with pytest.raises(ClusterError, match="another command"):
            local_cluster.keep("busy")
    finally:
        done.set()
        other.join(20)


def hold_lock(name: str, held: Any, done: Any) -> None:
    with local_cluster.only_one(name):
        held.set()
        done.wait(60)


def test_a_cluster_that_was_never_made_is_told_with_what_there_is(home: Path) -> None:
    with pytest.raises(NotFoundError, match="no cluster called 'none' here"):
        local_cluster.connection("none")
    assert local_cluster.down("none") == 0


class Stuck(psutil.Process):
    """As if in uninterruptible sleep: no signal reaches it."""

    def terminate(self) -> None:
        pass

    kill = terminate


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    with subprocess.Popen(["sleep", "600"]) as child:
        yield Stuck(child.pid)
        child.kill()


def test_a_process_that_does_not_end_is_named_with_what_to_look_at(stuck: Stuck) -> None:
    with pytest.raises(OpsTimeoutError, match=f"{stuck.pid}.* do not end") as error:
        end(lambda: [stuck], grace_seconds=0, patience_seconds=0.2)
    assert "look at the disk or NFS" in error.value.hint
    assert "`steadyray cluster down` again" in error.value.hint


def test_a_supervisor_whose_cluster_cannot_be_ended_is_told_so_and_may_try_again(
    home: Path, small_profile: SmallProfile, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by(HERE, small_profile({"name": "again"}))
    monkeypatch.setattr(local_cluster, "end", lambda *_, **__: end(lambda: [stuck], 0, 0.2))
    for _ in range(2):
        with pytest.raises(ClusterError, match=f"{stuck.pid}.* do not end"):
            LocalMaker("again").make()


def test_floors_outlive_a_lost_cluster_but_not_its_end(
    home: Path, small_profile: SmallProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def floor() -> int:
        text = yaml.safe_load(local_cluster.folder_of("again").launcher_file.read_text())
        wanted = local_cluster.profile_of("again").groups["cpu"].min
        assert text["available_node_types"]["cpu"]["min_workers"] == wanted
        return wanted

    def fail(*_: Any) -> None:
        raise ClusterError("the head did not start")

    profile = small_profile({"name": "again"})
    made_by(HERE, profile)
    local_cluster.set_floor("again", "cpu", 2)
    monkeypatch.setattr(local_cluster, "_start_keeper", fail)
    with pytest.raises(ClusterError, match="did not start"):
        LocalMaker("again").make()
    monkeypatch.setattr(local_cluster, "_start_keeper", lambda *_: None)
    monkeypatch.setattr(local_cluster, "_wait_until_it_answers", lambda *_: None)
    LocalMaker("again").make()
    assert floor() == 2
    smaller = small_profile({"name": "again", "groups": {"cpu": {"max": 1}}})
    local_cluster.up(smaller)
    assert floor() == 0, "what the profile no longer allows is dropped"
    local_cluster.set_floor("again", "cpu", 1)
    local_cluster.down("again")
    local_cluster.up(smaller)
    assert floor() == 0
    local_cluster.down("again")


def test_floors_that_a_failed_remake_has_kept_end_with_down(home: Path, small_profile: SmallProfile) -> None:
    folder = made_by(HERE, small_profile({"name": "again"}))
    local_cluster.set_floor("again", "cpu", 2)
    folder.cluster_file.unlink()
    local_cluster.down("again")
    assert folder.floors() == {}


def test_as_many_failed_starts_are_kept_as_logs(home: Path) -> None:
    folder = local_cluster.folder_of("any")
    for number in range(KEPT_FOLDERS + 2):
        folder.save_failed_start(FailedStart(f"cpu-{number}", "cpu", "`ray start` failed", "log", number))
    kept = [failed.instance for failed in folder.read_failed_starts()]
    assert kept == [f"cpu-{number}" for number in range(2, KEPT_FOLDERS + 2)]


def run_on(cluster: str, name: str, home: Path) -> RunStore:
    store = open_store(str(home / "runs"), name)
    spec = RunSpec(
        schema=1,
        name=name,
        entrypoint=("python", "train.py"),
        recipe=None,
        code_hash="0",
        cluster=cluster,
        env={},
        secret_env=(),
        restart_ok=False,
        created=0.0,
    )
    submission.create(store, SystemClock(), spec, b"")
    return store


def test_down_names_the_runs_that_it_leaves_unfinished_and_what_to_type(
    home: Path, steadyray: Callable[..., tuple[int, str, str]]
) -> None:
    for cluster, name in (("mine", "mine-a"), ("mine", "mine-b"), ("other", "other-a")):
        run_on(cluster, name, home)
    run_on("mine", "mine-done", home).put("result.json", b'{"state": "Succeeded"}')
    for name, result in (("damaged", b"{"), ("odd", b"[]"), ("strange", b'{"state": "Lost"}')):
        run_on("mine", name, home).put("result.json", result)
    (home / "runs/damaged/spec.json").write_text("{")
    code, out, err = steadyray("cluster", "down", "-n", "mine", "-o", "json")
    assert code == 0, err
    assert json.loads(out) == {"name": "mine", "processes_ended": 0, "unfinished_runs": ["mine-a", "mine-b"]}
    assert "steadyray job stop mine-a" in err
    assert "steadyray cluster up --name mine, then steadyray job run mine-a" in err


def test_down_says_nothing_of_runs_where_there_are_none_or_they_cannot_be_read(
    home: Path, steadyray: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for runs in (home / "runs", "no-such-scheme://runs"):
        monkeypatch.setenv("STEADYRAY_RUNS", str(runs))
        code, out, err = steadyray("cluster", "down", "-n", "mine")
        assert (code, out, err) == (0, "", "no cluster mine: nothing to do\n")


def assert_nothing(home: Path) -> None:
    """No folder, no file but the lock, no process."""
    assert [path.name for path in (home / "clusters").iterdir() if not path.name.endswith(".lock")] == []


def cluster_uuid(cluster: ClusterConnection) -> str:
    return str(local_cluster.ClusterFolder(cluster.folder).cluster()["uuid"])
