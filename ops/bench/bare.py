"""The same nodes without Steadyray: `ray start` for a head and workers, and the Jobs API of that head.

Only the marker in their environment is ours, so that their processes can be measured and ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ops import packing
from ops.adapters.local_nodes import NodeRecord, free_ports, node_address, ray_start
from ops.adapters.local_processes import MARKER, end, marked, marker
from ops.adapters.ray_http import RayHttp
from ops.bench.desk import SCRIPTS, Broken
from ops.ports import JobRequest

START_SECONDS = 120.0
OBJECT_STORE_MIB = {"head": 96, "worker": 128}
"""As in cluster/profiles/local.yaml."""


@dataclass(frozen=True)
class BareCluster:
    """A head and workers that `ray start` made."""

    uuid: str
    folder: Path
    gcs_address: str
    url: str

    def processes(self) -> list[psutil.Process]:
        return marked(self.uuid)

    def environment(self) -> dict[str, str]:
        return {"PATH": f"{Path(sys.executable).parent}:${{PATH}}"}

    def submit(self, folder: Path, command: str, environment: dict[str, str]) -> None:
        """As `ray job submit` does: upload the folder of the scripts, then post the job."""
        client = RayHttp(self.url)
        package = packing.pack(SCRIPTS)
        uri = client.upload_package(f"_ray_pkg_{package.code_hash[:32]}.zip", package.data)
        variables = {**self.environment(), **environment, "BENCH_FOLDER": str(folder)}
        client.submit(JobRequest(folder.name, command, {"working_dir": uri, "env_vars": variables}))


@contextlib.contextmanager
def cluster(workers: int) -> Iterator[BareCluster]:
    """Start the head, then the workers side by side; all gone afterwards. Raises Broken."""
    name = uuid.uuid4().hex
    gcs, dashboard, client = free_ports(3)
    folder = Path(tempfile.mkdtemp(prefix="sr-", dir=tempfile.gettempdir()))
    made = BareCluster(name, folder, f"{node_address(name, 1)}:{gcs}", f"http://127.0.0.1:{dashboard}")
    head = [
        "--head", f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1",
        f"--ray-client-server-port={client}", "--num-cpus=0", _store("head"),
    ]  # fmt: skip
    worker = [f"--address={made.gcs_address}", "--num-cpus=1", _store("worker")]
    try:
        _start(made, [(1, head)])
        _start(made, [(number, worker) for number in range(2, workers + 2)])
        yield made
    finally:
        end(lambda: marked(name), grace_seconds=1.0)
        shutil.rmtree(folder, ignore_errors=True)


def _store(role: str) -> str:
    return f"--object-store-memory={OBJECT_STORE_MIB[role] * 2**20}"


def _start(made: BareCluster, nodes: list[tuple[int, list[str]]]) -> None:
    started = []
    for number, arguments in nodes:
        instance = f"bare-{number}"
        record = NodeRecord(
            instance, "bare", node_address(made.uuid, number), str(made.folder / str(number)), time.time(), {}
        )
        log = made.folder / f"{number}.log"
        started.append((ray_start(record, arguments, _environment(made, instance), log), log))
    for process, log in started:
        if code := process.wait(START_SECONDS):
            raise Broken(f"ray start ended with {code}: {log.read_text()[-300:]}")


def _environment(made: BareCluster, instance: str) -> dict[str, str]:
    theirs = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "STEADYRAY_"))}
    theirs.pop("PYTHONDONTWRITEBYTECODE", None)
    return {
        **theirs,
        MARKER: marker(made.uuid, instance),
        "SPT_NOENV": "1",  # or Ray would write its titles over the marker
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
