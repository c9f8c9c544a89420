"""Make, find and end a local cluster. Called by `steadyray cluster`, the supervisor (to find it) and the
tests.

A cluster is a folder under `home()/clusters/`, a short temporary folder, one keeper process, and Ray's
processes, all of which carry the cluster's uuid in their environment. Nothing else makes a process ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from ops import render
from ops.adapters.local_host import Relation, host_of, this_host
from ops.adapters.local_nodes import (
    HEAD,
    ClusterFolder,
    NodeRecord,
    free_ports,
    node_address,
    write_json,
    write_text,
)
from ops.adapters.local_preflight import check as preflight
from ops.adapters.local_processes import MARKER, ProcessId, end, marked, marker
from ops.config import home
from ops.errors import ClusterError, NotFoundError, OpsTimeoutError
from ops.profile import Profile
from ops.profile import load as load_profile

UP_SECONDS = 180.0
"""From the start of the keeper to a head that answers: 6 s quiet, 30 s seen with six neighbours on two
cores."""

REPORT_SECONDS = 30.0
"""Until a keeper says that it runs: 0.2 s quiet."""


@dataclass(frozen=True)
class ClusterConnection:
    """What a client needs to reach a cluster."""

    name: str
    dashboard_url: str
    token_file: Path
    gcs_address: str
    temp_dir: Path
    folder: Path

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def environment(self) -> dict[str, str]:
        """Variables with which Ray's own clients reach this cluster and no other."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "RAY_ADDRESS": self.gcs_address,
            "RAY_TMPDIR": str(self.temp_dir / HEAD),
            "RAY_USAGE_STATS_ENABLED": "0",
        }


@dataclass(frozen=True)
class Found:
    """What there is of a cluster of some name."""

    folder: ClusterFolder
    cluster: dict[str, Any]
    keeper: ProcessId | None

    @cached_property
    def processes(self) -> int:
        """How many live *and* can be seen here. Not counted before it is asked for: that looks at every
        process of the machine."""
        return len(marked(self.cluster["uuid"]))

    @property
    def elsewhere(self) -> bool:
        """Another host or container made it, so that nothing can be said about its processes from here."""
        return host_of(self.cluster).seen_from(this_host()) is Relation.ELSEWHERE


def folder_of(name: str) -> ClusterFolder:
    return ClusterFolder(home() / "clusters" / name)


def names() -> list[str]:
    """Clusters that were made and not ended, running or not."""
    return sorted(path.parent.name for path in (home() / "clusters").glob("*/cluster.json"))


def find(name: str) -> Found | None:
    """What is there of a cluster: None when it was never made or was ended properly."""
    folder = folder_of(name)
    try:
        cluster = folder.cluster()
    except FileNotFoundError:
        return None
    keeper = None
    with contextlib.suppress(FileNotFoundError):
        data = json.loads(folder.keeper_file.read_text())
        process = ProcessId(data["pid"], data["created"])
        keeper = process if process.alive() else None
    return Found(folder, cluster, keeper)


def known(name: str) -> bool:
    """Whether a cluster of that name was ever made or ended in this home; its lock stays after it."""
    return folder_of(name).path.exists() or _lock_file(name).exists()


def connection(name: str) -> ClusterConnection:
    """How to reach a cluster that was made. Raises NotFoundError when there is none of that name."""
    folder = folder_of(name)
    try:
        return _connection(folder, folder.cluster())
    except FileNotFoundError:
        others = ", ".join(names()) or "none"
        raise NotFoundError(
            f"no cluster called {name!r} here (looked in {folder.path.parent}, there is: {others})",
            hint="make it with `steadyray cluster up`; or, if it was made from another folder, set "
            "STEADYRAY_HOME to the .steadyray folder there",
        ) from None


def _connection(folder: ClusterFolder, cluster: dict[str, Any]) -> ClusterConnection:
    return ClusterConnection(
        name=cluster["name"],
        dashboard_url=cluster["address"],
        token_file=folder.token_file,
        gcs_address=cluster["gcs_address"],
        temp_dir=Path(cluster["temp_dir"]),
        folder=folder.path,
    )


def up(profile: Profile, say: Callable[[str], None] = lambda _: None) -> ClusterConnection:
    """Make the cluster, or return the one that runs; a lost keeper is replaced. Idempotent.

    Raises ClusterError with a hint when it cannot be made; then only its profile, floors and logs are
    left, so that it can be tried again by name.
    """
    with only_one(profile.name, UP_SECONDS, say):
        found = find(profile.name)
        _refuse_elsewhere(found)
        if found is not None and found.processes:
            if yaml.safe_load(found.folder.profile_file.read_text()) != profile.model_dump():
                say(f"cluster {profile.name!r} has another profile; `cluster down` first to apply this one")
            return _repaired(found, say)
        folder = folder_of(profile.name)
        preflight(profile, folder.path)  # first: a machine that is not ready must not cost what there is
        if found is not None:
            say(f"cleaning up after an earlier cluster {profile.name!r} that ended without `cluster down`")
            _remove(found, keep_logs=True)
        cluster = _prepare(profile, folder)
        try:
            keeper = _start_keeper(folder, cluster)
            _wait_until_it_answers(folder, cluster, keeper)
        except BaseException:  # Ctrl-C as well: nothing half-started stays
            _remove(Found(folder, cluster, None), keep_logs=True)
            raise
        return _connection(folder, cluster)


def keep(name: str) -> None:
    """Start the keeper of a living cluster again if it died; returns before the head that it may start.

    Raises ClusterError where another command is at work on the cluster.
    """
    with only_one(name):
        found = find(name)
        if found is not None and not found.elsewhere and found.processes and found.keeper is None:
            keeper = _start_keeper(found.folder, found.cluster)
            # until it has said who it is, a second look would take it for dead and start another one
            _wait_until_it_reports(found.folder, keeper)


def down(name: str, say: Callable[[str], None] = lambda _: None) -> int:
    """End a cluster and all it left; returns how many processes were ended. Idempotent, works after a
    crash."""
    with only_one(name, UP_SECONDS, say):
        found = find(name)
        _refuse_elsewhere(found)
        if found is None:
            folder_of(name).floors_file.unlink(missing_ok=True)  # what a failed remake has kept
            return 0
        return _remove(found)


def _refuse_elsewhere(found: Found | None) -> None:
    """To clean up after processes that one cannot see would leave them running without their files."""
    if found is None or not found.elsewhere:
        return
    name, owner = found.cluster["name"], host_of(found.cluster).words(this_host())
    raise ClusterError(
        f"cluster {name!r} belongs to host {owner}; from here its processes cannot be seen",
        hint=f"type it there (steadyray cluster down --name {name}), or take another name or STEADYRAY_HOME; "
        f"if that host is gone for ever: rm {found.folder.cluster_file}",
    )


def _repaired(found: Found, say: Callable[[str], None]) -> ClusterConnection:
    keeper = None
    if found.keeper is None:
        say(f"the keeper of cluster {found.cluster['name']!r} is gone: starting a new one")
        keeper = _start_keeper(found.folder, found.cluster)
    _wait_until_it_answers(found.folder, found.cluster, keeper)
    return _connection(found.folder, found.cluster)


def _prepare(profile: Profile, folder: ClusterFolder) -> dict[str, Any]:
    """Choose ports, write the cluster's files. No process is started here."""
    cluster_uuid = uuid.uuid4().hex
    host = node_address(cluster_uuid, 1)
    free = free_ports(5)
    gcs_port = profile.head.gcs_port or free[0]
    dashboard_port = profile.head.dashboard_port or free[1]
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.path.chmod(0o700)
    token = os.open(folder.token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(token, "w") as file:
        file.write(secrets.token_hex(32))
    (folder.path / "gcs").mkdir(exist_ok=True)
    folder.nodes.mkdir(exist_ok=True)
    folder.profile_file.write_text(yaml.safe_dump(profile.model_dump(), sort_keys=False))
    floors = {g: n for g, n in folder.floors().items() if g in profile.groups and n <= profile.groups[g].max}
    if floors != folder.floors():
        write_json(folder.floors_file, floors)
    folder.launcher_file.write_text(render.launcher_yaml(profile, floors))
    cluster = {
        "name": profile.name,
        "profile": str(folder.profile_file),
        "uuid": cluster_uuid,
        "host": asdict(this_host()),
        "address": f"http://127.0.0.1:{dashboard_port}",
        "gcs_address": f"{host}:{gcs_port}",
        "token_file": str(folder.token_file),
        "temp_dir": str(short_temp_dir(cluster_uuid)),
        "created": time.time(),
        "head_environment": {
            **render.head_environment(profile),
            # Both are fixed ports by default: the second cluster of a machine would have no metrics.
            "AUTOSCALER_METRIC_PORT": str(free[2]),
            "DASHBOARD_METRIC_PORT": str(free[3]),
        },
        "head_arguments": _head_arguments(profile, folder, gcs_port, dashboard_port, free[4]),
    }
    write_json(folder.cluster_file, cluster)
    return cluster


def _head_arguments(
    profile: Profile, folder: ClusterFolder, gcs_port: int, dashboard_port: int, client_port: int
) -> list[str]:
    mib = 1024 * 1024
    return [
        "--head",
        f"--port={gcs_port}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={client_port}",
        f"--num-cpus={profile.head.cpus}",
        "--num-gpus=0",
        f"--memory={profile.head.memory_mib * mib}",
        f"--object-store-memory={profile.head.object_store_mib * mib}",
        f"--autoscaling-config={folder.launcher_file}",
        f"--labels={render.GROUP_LABEL}={HEAD}",
    ]


def short_temp_dir(cluster_uuid: str) -> Path:
    """Ray's sockets lie below it, and a socket's path may have 107 characters however deep the home is."""
    return Path(tempfile.gettempdir()) / f"sr-{cluster_uuid[:8]}"


def _start_keeper(folder: ClusterFolder, cluster: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the keeper in a session of its own, so that it outlives this terminal.

    Ray's dashboard forks from a server that looks for packages in the current folder first, so the folder is
    the cluster's, and not a person's with a yaml.py in it.
    """
    environment = {**os.environ, MARKER: marker(cluster["uuid"], "keeper")}
    folder.keeper_file.unlink(missing_ok=True)
    with folder.keeper_log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ops.adapters.local_keeper", str(folder.path)],
            cwd=folder.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait_until_it_reports(folder: ClusterFolder, keeper: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + REPORT_SECONDS
    while not folder.keeper_file.exists():
        if keeper.poll() is not None or time.monotonic() > deadline:
            keeper.kill()
            raise ClusterError("a new keeper did not start", hint=f"see {folder.keeper_log}")
        time.sleep(0.05)


def _wait_until_it_answers(
    folder: ClusterFolder, cluster: dict[str, Any], keeper: subprocess.Popen[bytes] | None
) -> None:
    deadline = time.monotonic() + UP_SECONDS
    state: dict[str, Any] = {}
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            state = json.loads(folder.keeper_file.read_text())
        if state.get("state") == "failed":
            raise ClusterError(
                f"the head did not start: {state['detail']}", hint=_try_again(cluster, folder.head_log)
            )
        if keeper and keeper.poll() is not None:
            raise ClusterError(
                f"the keeper ended with {keeper.returncode}", hint=_try_again(cluster, folder.keeper_log)
            )
        if state.get("state") == "running" and answers(_connection(folder, cluster)):
            return
        time.sleep(0.05)
    raise OpsTimeoutError(
        f"cluster {cluster['name']!r} did not answer within {UP_SECONDS:g} s ({state or 'keeper silent'})",
        hint=f"see {folder.keeper_log} and {folder.head_log}",
    )


def answers(cluster: ClusterConnection) -> bool:
    """Whether the dashboard answers to our token."""
    try:
        response = httpx.get(
            f"{cluster.dashboard_url}/api/version",
            headers={"Authorization": f"Bearer {cluster.token}"},
            timeout=5,
        )
    except httpx.HTTPError:
        return False
    return response.status_code == 200


def _try_again(cluster: dict[str, Any], log: Path, lines: int = 8) -> str:
    again = f"correct what {log} says, then type: steadyray cluster up --name {cluster['name']}"
    with contextlib.suppress(FileNotFoundError):
        tail = log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"{again}; its last lines:", *tail])
    return again


def _remove(found: Found, keep_logs: bool = False) -> int:
    """Keeper first, or it would start the head again; then all that carries the uuid; then the files."""
    cluster_uuid = found.cluster["uuid"]
    ended = end(lambda: marked(cluster_uuid, "keeper"), grace_seconds=1.0)
    ended += end(lambda: marked(cluster_uuid), grace_seconds=2.0)
    if keep_logs:
        _keep_head_logs(found)
    shutil.rmtree(found.cluster["temp_dir"], ignore_errors=True)
    found.folder.cluster_file.unlink(missing_ok=True)  # last of what `find` reads, first of the rest
    if keep_logs:
        for path in (found.folder.path / "gcs", found.folder.nodes, found.folder.failed_starts):
            shutil.rmtree(path, ignore_errors=True)
        found.folder.keeper_file.unlink(missing_ok=True)
        found.folder.token_file.unlink(missing_ok=True)
    else:
        shutil.rmtree(found.folder.path, ignore_errors=True)
    return ended


def _keep_head_logs(found: Found) -> None:
    """Ray's own logs of a head that did not start; they say more than `ray start` does."""
    shutil.rmtree(found.folder.path / "logs", ignore_errors=True)
    for logs in Path(found.cluster["temp_dir"]).glob("head/session_2*/logs"):
        shutil.move(logs, found.folder.path / "logs")


def _lock_file(name: str) -> Path:
    return home() / "clusters" / f".{name}.lock"


@contextlib.contextmanager
def only_one(
    name: str, wait_seconds: float = 0.0, say: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """One `up` or `down` of a name at a time; the lock goes with its process, so it cannot be left behind.

    Raises ClusterError where the other one is not through within `wait_seconds`.
    """
    path = _lock_file(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise ClusterError(
            f"cannot write to {path.parent}: {error.strerror}",
            hint="set STEADYRAY_HOME to a folder that you may write to",
        ) from error
    busy = f"another command is making or ending cluster {name!r}"
    patient = Retrying(
        retry=retry_if_exception_type(BlockingIOError),
        stop=stop_after_delay(wait_seconds),
        wait=wait_fixed(0.2),
        before_sleep=lambda tried: say(f"{busy}: waiting for it") if tried.attempt_number == 1 else None,
        reraise=True,
    )
    with lock:
        try:
            patient(fcntl.flock, lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(busy, hint="wait for it, then look: steadyray cluster status") from None
        yield


def node_records(name: str) -> list[NodeRecord]:
    return folder_of(name).records()


def processes(name: str, instance: str | None = None) -> list[psutil.Process]:
    """The living processes of a cluster, or of one of its nodes."""
    return marked(folder_of(name).cluster()["uuid"], instance)


def kill_node(name: str, instance: str) -> int:
    """End all processes of one node at once, as a machine's crash would; for tests and demonstrations."""
    count = 0
    for process in processes(name, instance):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            count += 1
    return count


def profile_of(name: str) -> Profile:
    """The profile with which a cluster was made, with its floors as they are now."""
    folder = folder_of(name)
    floors = folder.floors()
    return load_profile(folder.profile_file, {"groups": {group: {"min": n} for group, n in floors.items()}})


def set_floor(name: str, group: str, count: int) -> None:
    """Let the cluster keep at least `count` nodes of a group; its autoscaler reads the new text within a
    round.

    Checked by the caller against the group's max.
    """
    folder = folder_of(name)
    with only_one(name):
        floors = {**folder.floors(), group: count}
        write_text(folder.launcher_file, render.launcher_yaml(load_profile(folder.profile_file), floors))
        write_json(folder.floors_file, floors)


def ready_nodes(name: str, group: str) -> int:
    """Nodes of a group that have started, from the provider's files."""
    return sum(
        record.group == group and record.raylet is not None and record.raylet.alive()
        for record in folder_of(name).records()
    )


def keeper_state(found: Found) -> dict[str, Any]:
    """What the keeper says of itself (`state`, `detail`, `restarts`); state "gone" where it does not run."""
    data: dict[str, Any] = {"detail": "", "restarts": 0}
    with contextlib.suppress(FileNotFoundError):
        data = json.loads(found.folder.keeper_file.read_text())
    return data if found.keeper else {**data, "state": "gone"}
