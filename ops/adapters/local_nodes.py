"""The nodes of a local cluster: one small file each, and how a `ray start` for one is put together.

The files are what the provider (in Ray's monitor, which dies with the head), the keeper and the command line
know in common. Written before the process is started, so that a crash in between leaves a trace.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.adapters.local_gpus import VISIBLE
from ops.adapters.local_processes import MARKER, ProcessId, marked, marker

HEAD = "head"
CLUSTER_DIR = "STEADYRAY_CLUSTER_DIR"
CURRENT_CLUSTER = "ray_current_cluster"
NODE_SITE = Path(__file__).parent / "node_site"
KEPT_FOLDERS = 8
"""How many temporary folders of ended nodes stay until `down`, for their logs."""
START_LOG = "start.log"
"""What `ray start` says, in the temporary folder of its node."""


@dataclass(frozen=True)
class NodeRecord:
    """One node. `raylet` is None until `ray start` has returned; a node lives as long as its raylet."""

    instance: str
    group: str
    address: str
    temp_dir: str
    started: float
    tags: dict[str, str]
    starter: ProcessId | None = None
    raylet: ProcessId | None = None
    gpus: tuple[str, ...] = ()
    """The machine's GPUs that this node alone sees; empty where they are only counted."""

    @property
    def is_head(self) -> bool:
        return self.group == HEAD


@dataclass(frozen=True)
class FailedStart:
    """A node that was asked for and did not come; Ray itself tells neither its name nor when that was."""

    instance: str
    group: str
    why: str
    log: str
    time: float | None = None


@dataclass(frozen=True)
class ClusterFolder:
    """Where a cluster keeps what it knows: `<home>/clusters/<name>/`."""

    path: Path

    @property
    def cluster_file(self) -> Path:
        return self.path / "cluster.json"

    @property
    def keeper_file(self) -> Path:
        return self.path / "keeper.json"

    @property
    def keeper_log(self) -> Path:
        return self.path / "keeper.log"

    @property
    def head_log(self) -> Path:
        return self.path / "head.log"

    @property
    def token_file(self) -> Path:
        return self.path / "token"

    @property
    def launcher_file(self) -> Path:
        return self.path / "launcher.yaml"

    @property
    def profile_file(self) -> Path:
        return self.path / "profile.yaml"

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    @property
    def failed_starts(self) -> Path:
        return self.path / "failed_starts"

    @property
    def floors_file(self) -> Path:
        return self.path / "floors.json"

    def cluster(self) -> dict[str, Any]:
        """What `up` wrote: name, uuid, addresses, ports. Raises FileNotFoundError."""
        data: dict[str, Any] = json.loads(self.cluster_file.read_text())
        return data

    def floors(self) -> dict[str, int]:
        """What `cluster scale` has set, by group; in a file of its own since it outlives a lost cluster."""
        try:
            data: dict[str, int] = json.loads(self.floors_file.read_text())
        except FileNotFoundError:
            return {}
        return data

    def records(self) -> list[NodeRecord]:
        found = []
        for path in sorted(self.nodes.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):  # removed by somebody else in between
                found.append(_record(json.loads(path.read_text())))
        return found

    def record(self, instance: str) -> NodeRecord | None:
        try:
            return _record(json.loads((self.nodes / f"{instance}.json").read_text()))
        except FileNotFoundError:
            return None

    def save(self, record: NodeRecord) -> NodeRecord:
        write_json(self.nodes / f"{record.instance}.json", asdict(record))
        return record

    def forget(self, record: NodeRecord) -> None:
        """Drop a node that has ended; keep its logs a while."""
        (self.nodes / f"{record.instance}.json").unlink(missing_ok=True)
        root = Path(record.temp_dir).parent
        living = {Path(other.temp_dir).name for other in self.records()}
        ended = [path for path in _oldest_first(root) if path.name not in living and path.name != HEAD]
        for path in ended[: max(0, len(ended) - KEPT_FOLDERS)]:
            shutil.rmtree(path, ignore_errors=True)

    def save_failed_start(self, failed: FailedStart) -> None:
        """Keep as many as there are logs of them."""
        write_json(self.failed_starts / f"{failed.instance}.json", asdict(failed))
        for path in _oldest_first(self.failed_starts)[:-KEPT_FOLDERS]:
            path.unlink(missing_ok=True)

    def read_failed_starts(self) -> list[FailedStart]:
        """Oldest first."""
        found = []
        for path in self.failed_starts.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # removed by somebody else in between
                found.append(FailedStart(**json.loads(path.read_text())))
        return sorted(found, key=lambda failed: failed.time or 0.0)


def _oldest_first(root: Path) -> list[Path]:
    try:
        return sorted(root.iterdir(), key=lambda path: path.stat().st_mtime)
    except FileNotFoundError:
        return []


def _record(data: dict[str, Any]) -> NodeRecord:
    processes = {key: ProcessId(**data[key]) if data[key] else None for key in ("starter", "raylet")}
    return NodeRecord(**{**data, **processes, "gpus": tuple(data.get("gpus", ()))})


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write at once or not at all: readers poll these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}")
    temporary.touch(mode=0o600)
    temporary.write_text(text)
    temporary.replace(path)


def node_address(cluster_uuid: str, number: int) -> str:
    """A loopback address of the node's own: a *host* to Ray and to training, and no clash of ports.

    Linux answers on all of 127/8; elsewhere nodes share 127.0.0.1. The middle bytes come from the uuid, so
    two clusters have different ones but for one chance in 60,000, and then their random ports still differ.
    """
    if sys.platform != "linux":
        return "127.0.0.1"
    return f"127.{int(cluster_uuid[:2], 16) % 254 + 1}.{int(cluster_uuid[2:4], 16)}.{number}"


def node_environment(
    folder: ClusterFolder, cluster: Mapping[str, Any], record: NodeRecord, wanted: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a node: the caller's without its Ray settings, the profile's, and the marker.

    Ray variables of the caller would change the node unseen (a RAY_ADDRESS, a head's RAY_gcs_storage).
    Without byte code on disk each of Ray's many processes would compile torch and itself anew: 20 s a rank.
    """
    theirs = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("RAY_", "STEADYRAY_", "PYTHONDONTWRITEBYTECODE"))
    }
    ours = {key: value.replace("$" + CLUSTER_DIR, str(folder.path)) for key, value in wanted.items()}
    return {
        **theirs,
        **({VISIBLE: ",".join(record.gpus)} if record.gpus else {}),
        **ours,
        CLUSTER_DIR: str(folder.path),
        MARKER: marker(cluster["uuid"], record.instance),
        # Ray writes the titles of its processes over their environment, and the marker with it, unless this
        # is set.
        "SPT_NOENV": "1",
        "STEADYRAY_GCS_ADDRESS": cluster["gcs_address"],
        "PYTHONPATH": os.pathsep.join(filter(None, [str(NODE_SITE), theirs.get("PYTHONPATH")])),
        "RAY_TMPDIR": record.temp_dir,
        "RAY_CLOUD_INSTANCE_ID": record.instance,
        "RAY_NODE_TYPE_NAME": record.group,
    }


RAY_START = (sys.executable, "-P", "-m", "ray.scripts.scripts", "start")
FIXED_FLAGS = (
    "--node-manager-port=0",
    "--object-manager-port=0",
    "--min-worker-port=0",
    "--max-worker-port=0",
    "--disable-usage-stats",
)
AGENT_PORTS = (
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
)
"""Told to Ray, not left to it: where they are 0 the raylet waits for its agents to write the ports they
took, and dies after 15 s (seen on a machine with a load of 14). A fixed default that a neighbour holds
makes every job submission answer 500."""


def free_ports(count: int, host: str = "0.0.0.0") -> list[int]:
    """Ports that nobody listens on at the moment; held together while they are chosen, so they differ."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def ray_start(
    record: NodeRecord, arguments: list[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start `ray start` for a node, in a session of its own so that no terminal signal reaches it.

    Without `--block`: the blocking process holds 40 MB a node, and outlives a raylet that was drained.
    """
    command = [
        *RAY_START,
        f"--node-ip-address={record.address}",
        f"--node-name={record.instance}",
        f"--temp-dir={record.temp_dir}",
        *FIXED_FLAGS,
        *(f"{flag}={port}" for flag, port in zip(AGENT_PORTS, free_ports(len(AGENT_PORTS)), strict=True)),
        *arguments,
    ]
    # Ray opens a node's own folder to all, and its logs quote variables of jobs: nobody gets past this one.
    Path(record.temp_dir).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    Path(record.temp_dir).mkdir(exist_ok=True, mode=0o700)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def finish_start(record: NodeRecord, gcs_address: str) -> None:
    """What `ray start` does last, and leaves out when it gave up waiting: say which cluster "auto" means
    here."""
    (Path(record.temp_dir) / CURRENT_CLUSTER).write_text(gcs_address)


def find_raylet(record: NodeRecord, cluster_uuid: str) -> ProcessId | None:
    for process in marked(cluster_uuid, record.instance):
        with contextlib.suppress(Exception):
            if process.name() == "raylet":
                return ProcessId.of(process)
    return None
