"""GPUs of this machine among local nodes: each node its own; without any they are counted only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cluster_support import Jobs, until

from ops.adapters import local_cluster
from ops.adapters.local_cluster import ClusterConnection
from ops.adapters.local_gpus import VISIBLE, devices, share
from ops.adapters.local_nodes import NodeRecord

SEES = """
import os, ray
ray.init(log_to_driver=False)
@ray.remote(num_gpus=1)
def sees(): return os.environ["CUDA_VISIBLE_DEVICES"]
@ray.remote(num_cpus=0.1)
def counts(): return int(ray.cluster_resources()["GPU"])
print("seen", *sorted(ray.get([sees.remote(), sees.remote()])), "of", ray.get(counts.remote()))
"""


def test_the_machines_gpus_are_those_of_its_driver_or_those_that_the_caller_chose(tmp_path: Path) -> None:
    for name in ("0000:07:00.0", "0000:0a:00.0"):
        (tmp_path / name).mkdir()
    assert devices({}, tmp_path) == ["0", "1"]
    assert devices({VISIBLE: "GPU-8f2, 3"}, tmp_path) == ["GPU-8f2", "3"]
    assert devices({VISIBLE: ""}, tmp_path) == []
    assert devices({}, tmp_path / "no driver") == []


@pytest.mark.parametrize(
    ("taken", "wanted", "given"),
    [([], 1, ("0",)), (["0"], 1, ("1",)), (["0"], 2, ()), ([], 2, ("0", "1")), ([], 0, ())],
)
def test_a_node_gets_gpus_that_no_other_has_or_none(taken: list[str], wanted: int, given: object) -> None:
    assert share(["0", "1"], taken, wanted) == given


@pytest.mark.ray
def test_two_nodes_see_one_gpu_each_and_a_cpu_node_offers_none(
    make_cluster: Callable[..., ClusterConnection], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VISIBLE, "3,7")
    cluster = make_cluster({"groups": {"cpu": {"min": 1, "max": 1}, "gpu": {"min": 2, "max": 2}}})

    def started() -> list[NodeRecord] | None:
        found = [r for r in local_cluster.node_records(cluster.name) if not r.is_head and r.raylet]
        return found if len(found) == 3 else None

    nodes = until("three nodes", started)
    assert sorted(node.gpus for node in nodes) == [(), ("3",), ("7",)]
    for node in nodes:
        assert node.raylet is not None
        visible = psutil.Process(node.raylet.pid).environ()[VISIBLE]
        assert visible == (",".join(node.gpus) or "3,7")
    jobs = Jobs(cluster)
    script = tmp_path / "sees.py"
    script.write_text(SEES)
    job = jobs.submit(script)
    jobs.wait(job, "SUCCEEDED")
    assert "seen 3 7 of 2" in jobs.logs(job)
    local_cluster.down(cluster.name)
