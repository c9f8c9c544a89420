"""Nodes that are drained, killed or lose their head under a training: the job goes on inside its attempt."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.adapters import local_cluster
from ops.adapters.local_cluster import ClusterConnection

from .conftest import DRIVER, HOLD_AT, Training

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

STEPS = 900


def start(cluster: ClusterConnection, home: Path, folder: Path, name: str, **settings: Any) -> Training:
    """A supervised run of hurt_driver.py on a real cluster, with its driver on a worker node."""
    shutil.copy(DRIVER, folder)
    root = home / "runs" / name
    settings = {"hold": [HOLD_AT, str(root.with_suffix(".go"))], **settings}
    root.parent.mkdir(parents=True, exist_ok=True)
    words = ["job", "run", "--cluster", cluster.name, "--name", name, "--"]
    with root.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ops.cli", *words, "python", DRIVER.name, json.dumps(settings)],
            cwd=folder, env={**os.environ, "STEADYRAY_HOME": str(home)}, stdout=log, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
    return Training(root, process)


def apart_from_driver(training: Training) -> dict[str, Any]:
    """A rank on another node than the driver, which ends with its node."""
    [driver] = [e["data"]["node"] for e in training.events("DriverStarted")]
    return next(dict(rank) for rank in training.progress()["ranks"] if rank["node"] != driver)


def instance_of(pid: int) -> str:
    """The node a process belongs to, from the marker in its environment."""
    return psutil.Process(pid).environ()["STEADYRAY_NODE"].rpartition("/")[2]


def test_a_drained_a_killed_node_and_a_lost_head_cost_no_step_and_no_attempt(
    make_cluster: Callable[..., ClusterConnection], steadyray_home: Path, tmp_path: Path
) -> None:
    cluster = make_cluster({"groups": {"cpu": {"min": 4, "max": 5}}})
    training = start(cluster, steadyray_home, tmp_path, "nodes", steps=STEPS, sleep=0.03)
    try:
        training.ready()
        drained = apart_from_driver(training)["node"]
        command = [sys.executable, "-m", "ops.cli", "node", "remove", drained, "--deadline", "60"]
        removed = subprocess.run(
            [*command, "--name", cluster.name],
            env={**os.environ, "STEADYRAY_HOME": str(steadyray_home)}, capture_output=True, text=True,
        )  # fmt: skip
        assert removed.returncode == 0, removed.stderr

        ready = training.wait_for(
            lambda p: p["generation"] >= 2 and p["spares"] >= 1 and p["world_size"] == 2
        )
        assert local_cluster.kill_node(cluster.name, instance_of(apart_from_driver(training)["pid"])) > 0
        killed = training.wait_for(
            lambda p: p["generation"] > ready["generation"] and p["step"] > ready["step"] + 5
        )

        head = json.loads((steadyray_home / "clusters" / cluster.name / "cluster.json").read_text())
        end_head_server(head)
        training.wait_for(lambda p: p["step"] > killed["step"] + 60)
        result = training.finish_run()
    finally:
        if training.process.poll() is None:
            os.killpg(training.process.pid, signal.SIGKILL)
        training.process.wait()
    assert result["seen"] == STEPS
    assert sorted(training.losses()) == list(range(1, STEPS + 1))
    assert {r["steps_redone"] for r in training.recovered()} == {0}
    classes = [e["data"]["failure_class"] for e in training.events("RankLost")]
    assert classes == ["Preempted", "NodeLost"]
    assert len(list(training.root.glob("attempts/*/lease.json"))) == 1


def end_head_server(cluster: dict[str, Any]) -> None:
    """SIGKILL the cluster's gcs_server, and nothing else."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "gcs_server" and cluster["uuid"] in process.environ().get(
            "STEADYRAY_NODE", ""
        ):
            process.kill()
            return
    raise AssertionError("the cluster has no gcs_server")
