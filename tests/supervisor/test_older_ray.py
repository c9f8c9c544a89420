"""A cluster that somebody else has started, with an older Ray than ours in an environment of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import CHECKPOINTING, Desk, driver_of, wait_for
from ops.adapters.local_nodes import free_ports
from ops.adapters.local_processes import MARKER, end, marked, marker
from ops.adapters.ray_http import parse_job

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Older:
    """Started by the full path of its `ray`, so that `python` on its nodes is not the one that has Ray."""

    ray: Path
    uuid: str
    folder: Path
    gcs: int
    dashboard: int

    def start(self, number: int, *words: str) -> None:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            MARKER: marker(self.uuid, f"node-{number}"),
        }
        # its agents listen on 127.0.0.1 alone, and two nodes there need two ports
        address = ("--node-ip-address=127.0.0.1", f"--dashboard-agent-listen-port={free_ports(1)[0]}")
        temporary = f"--temp-dir={self.folder / str(number)}"
        subprocess.run(
            [self.ray, "start", *words, *address, temporary, "--disable-usage-stats"],
            env=environment, check=True, capture_output=True, text=True, timeout=120, cwd=self.folder,
        )  # fmt: skip

    def start_head(self) -> None:
        ports = (f"--port={self.gcs}", f"--dashboard-port={self.dashboard}")
        more = (f"--ray-client-server-port={free_ports(1)[0]}", "--dashboard-host=127.0.0.1", "--num-cpus=0")
        self.start(1, "--head", *ports, *more)
        wait_for(lambda: self.version(), "the dashboard")

    def start_worker(self, number: int) -> None:
        self.start(number, f"--address=127.0.0.1:{self.gcs}", "--num-cpus=2")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"

    def version(self) -> str:
        try:
            return str(httpx.get(f"{self.url}/api/version", timeout=2).json()["ray_version"])
        except (httpx.HTTPError, ValueError):
            return ""


@pytest.fixture(scope="module")
def older() -> Iterator[Older]:
    python = subprocess.run([ROOT / "scripts/older-ray"], check=True, capture_output=True, text=True).stdout
    folder = Path(tempfile.mkdtemp(prefix="sr-", dir="/tmp"))  # of sockets, whose paths must be short
    gcs, dashboard = free_ports(2)
    cluster = Older(Path(python.strip()).with_name("ray"), uuid.uuid4().hex, folder, gcs, dashboard)
    try:
        cluster.start_head()
        cluster.start_worker(2)
        yield cluster
    finally:
        end(lambda: marked(cluster.uuid), grace_seconds=0.0)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def abroad(older: Older, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, tmp_path / "home", older.url)
    yield desk
    desk.close()


@pytest.mark.ray
def test_a_killed_driver_goes_on_from_its_checkpoint(abroad: Desk, older: Older) -> None:
    assert older.version().startswith("2.49.")
    script = abroad.script("train.py", CHECKPOINTING)
    gate = abroad.directory("old") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("5")
    abroad.start("job", "run", "--address", older.url, "--name", "old", "--", "python", script, "20")
    driver = driver_of(abroad, "old", 1)
    wait_for(lambda: abroad.read("old", "attempts/0001/progress.json").get("step") == 5, "step 5")
    os.kill(driver, signal.SIGKILL)
    gate.write_text("99")
    _, err = abroad.started[0].communicate(timeout=280)
    assert abroad.started[0].returncode == 0, err
    lines = (abroad.directory("old") / "trace.txt").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [["1", "0"], ["2", "5"]]


@pytest.mark.ray
def test_an_exit_code_is_a_user_error_there_too(abroad: Desk) -> None:
    script = abroad.script("exits.py", "import sys; sys.exit(3)")
    seen = abroad.run(*abroad.job("exits"), script)
    assert seen.returncode == 1, seen.stderr
    result = abroad.read("exits", "result.json")
    assert (result["failure_class"], result["exit_code"], result["attempt"]) == ("UserError", 3, 1)
    assert "Runtime env is setting up" not in result["message"]


@pytest.mark.ray
def test_a_pending_job_is_ended_by_the_clusters_own_python(abroad: Desk) -> None:
    script = abroad.script("waits.py", "print('never')")
    seen = abroad.run(*abroad.job("waits", "--driver-resource", "gold=1", "--wait-limit", "4"), script)
    assert seen.returncode == 4, seen.stderr
    assert abroad.read("waits", "result.json")["failure_class"] == "CapacityMissing"


UNAVAILABLE = (
    "Unexpected error occurred: The actor 91c3842594460fe221a8526601000000 is unavailable: The actor is "
    "temporarily unavailable: RpcError: RPC Error message: failed to connect to all addresses; last error: "
    "UNKNOWN: ipv4:192.0.2.2:10005: Failed to connect to remote host: Connection refused"
)
NODE_DIED = (
    "Unexpected error occurred: The actor died unexpectedly before finishing this task.\n\tclass_name: "
    "JobSupervisor\nThe actor died because its node has died."
)


@pytest.mark.parametrize(
    ("told", "error_type", "exit_code"),
    [
        ({"status": "FAILED", "message": UNAVAILABLE}, "JOB_SUPERVISOR_ACTOR_DIED", None),
        ({"status": "FAILED", "message": NODE_DIED}, "JOB_SUPERVISOR_ACTOR_DIED", None),
        (
            {
                "status": "FAILED",
                "message": "Job entrypoint command failed with exit code -9, last available",
            },
            "JOB_ENTRYPOINT_COMMAND_ERROR",
            -9,
        ),
        ({"status": "RUNNING", "message": "Job is currently running."}, "", None),
        ({"status": "FAILED", "error_type": "X", "driver_exit_code": 7, "message": NODE_DIED}, "X", 7),
    ],
)
def test_words_of_older_releases_become_the_fields_of_later_ones(
    told: dict[str, Any], error_type: str, exit_code: int | None
) -> None:
    job = parse_job({"error_type": None, "driver_exit_code": None, **told})
    assert (job.error_type, job.exit_code) == (error_type, exit_code)
