"""One cluster with an autoscaler, a keeper and real nodes: what its users and its faults do to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from cluster_support import Jobs, until

from ops.adapters import local_cluster, local_ray
from ops.adapters.local_cluster import ClusterConnection
from ops.adapters.local_nodes import NodeRecord

pytestmark = pytest.mark.ray

Command = Callable[..., tuple[int, str, str]]

SLEEP = """
import ray, sys, time
ray.init(log_to_driver=False)
@ray.remote
def sleep(seconds): time.sleep(seconds)
ray.get(sleep.options(**eval(sys.argv[2])).remote(float(sys.argv[1])))
"""

WHERE = """
import os, ray
ray.init(log_to_driver=False)
node = ray.get_runtime_context().get_node_id()
mine = next(n for n in ray.nodes() if n["NodeID"] == node)
print("driver of", os.environ["RAY_CLOUD_INSTANCE_ID"], "is on", mine["NodeName"])
"""

COUNT = """
import os, pathlib, ray, sys, time
ray.init(log_to_driver=False)
@ray.remote(num_cpus=0.1, resources={"steadyray_worker": 0.001})
class Counter:
    def __init__(self): self.n = 0
    def add(self): self.n += 1; return self.n, os.getpid()
counter = Counter.options(name="counter", lifetime="detached").remote()
while not pathlib.Path(sys.argv[1], "stop").exists():
    n, pid = ray.get(counter.add.remote())
    pathlib.Path(sys.argv[1], "count").write_text(f"{n} {pid}")
    time.sleep(0.1)
ray.kill(counter)
"""


def workers(cluster: ClusterConnection, group: str = "cpu") -> list[NodeRecord]:
    """Nodes of a group that have started and live."""
    records = local_cluster.node_records(cluster.name)
    return [r for r in records if r.group == group and r.raylet is not None and r.raylet.alive()]


def only_worker(cluster: ClusterConnection, group: str = "cpu") -> list[NodeRecord]:
    """The node of a group once it is idle and the only one.

    A floor that was lowered and raised again at once may leave two for a while, of which the autoscaler ends
    one as soon as it has been idle for long enough.
    """
    nodes = [node for node in local_ray.look(cluster).nodes if node.group == group]
    return workers(cluster, group) if [node.state for node in nodes] == ["idle"] else []


def head(cluster: ClusterConnection) -> NodeRecord:
    return next(record for record in local_cluster.node_records(cluster.name) if record.is_head)


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_nobody_without_the_token_gets_an_answer(cluster: ClusterConnection) -> None:
    url = f"{cluster.dashboard_url}/api/jobs/"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer guess"}).status_code == 403
    assert httpx.get(url, headers={"Authorization": f"Bearer {cluster.token}"}).status_code == 200
    assert stat.S_IMODE(cluster.token_file.stat().st_mode) == 0o600


def test_other_users_read_no_log_of_ray(cluster: ClusterConnection) -> None:
    """They quote the variables of jobs, and Ray opens its own folders to all."""
    assert stat.S_IMODE(cluster.temp_dir.stat().st_mode) == 0o700


def test_a_second_up_finds_the_running_cluster(cluster: ClusterConnection) -> None:
    before = local_cluster.find(cluster.name)
    again = local_cluster.up(local_cluster.profile_of(cluster.name))
    after = local_cluster.find(cluster.name)
    assert again == cluster
    assert before is not None
    assert after is not None
    assert after.keeper == before.keeper


def test_a_node_comes_on_demand_and_goes_when_idle(
    cluster: ClusterConnection, jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs.submit(script(tmp_path, SLEEP), "0.1", '{"num_gpus": 1}')
    until("a gpu node", lambda: workers(cluster, "gpu"))
    jobs.wait(job, "SUCCEEDED")
    until("no gpu node", lambda: not workers(cluster, "gpu"))
    until("no cpu node", lambda: not workers(cluster))


def test_a_driver_belongs_to_the_worker_node_that_it_runs_on(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.submit(script(tmp_path, WHERE))
    jobs.wait(job, "SUCCEEDED")
    line = until(
        "the log of a driver on a worker node", lambda: "driver of" in jobs.logs(job) and jobs.logs(job)
    )
    words = next(row for row in line.splitlines() if row.startswith("driver of")).split()
    assert words[2] == words[-1]
    assert words[2].startswith("cpu-")


def test_a_lost_head_comes_back_and_nodes_job_and_actor_live_on(
    cluster: ClusterConnection, jobs: Jobs, tmp_path: Path
) -> None:
    job = jobs.submit(script(tmp_path, COUNT), str(tmp_path))
    count = tmp_path / "count"
    until("the job counts", count.exists)
    nodes, old = workers(cluster), head(cluster)
    pid = count.read_text().split()[1]

    local_cluster.kill_node(cluster.name, old.instance)
    until("another head", lambda: [r for r in local_cluster.node_records(cluster.name) if r.is_head] != [old])
    until("the head answers", lambda: local_cluster.answers(cluster), 150)
    until("the job is known", lambda: jobs.status(job) == "RUNNING")

    reached = int(count.read_text().split()[0])
    until("the job counts on", lambda: int((count.read_text() or "0").split()[0]) > reached + 5)
    assert [node.raylet for node in workers(cluster)] == [node.raylet for node in nodes]
    assert count.read_text().split()[1] == pid
    (tmp_path / "stop").touch()
    jobs.wait(job, "SUCCEEDED")


def test_up_replaces_a_killed_keeper_and_the_new_one_keeps(cluster: ClusterConnection) -> None:
    found = local_cluster.find(cluster.name)
    assert found is not None
    assert found.keeper is not None
    os.kill(found.keeper.pid, signal.SIGKILL)
    until("no keeper", lambda: not found.keeper.alive())
    kept = head(cluster)
    assert local_cluster.up(local_cluster.profile_of(cluster.name)) == cluster
    assert head(cluster) == kept

    local_cluster.kill_node(cluster.name, kept.instance)
    until("another head", lambda: local_cluster.answers(cluster) and head(cluster) != kept, 150)


def test_scale_grows_a_group_and_shrinks_it_by_its_idle_nodes(
    cluster: ClusterConnection, steadyray: Command
) -> None:
    code, out, err = steadyray("cluster", "scale", "cpu", "2", "-n", cluster.name, "-o", "json")
    assert code == 0, err
    told = {"name": cluster.name, "group": "cpu", "floor": 2, "drained": [], "busy": []}
    assert json.loads(out) == told
    assert len(workers(cluster)) == 2
    code, _, err = steadyray("cluster", "scale", "cpu", "0", "-n", cluster.name)
    assert code == 0, err
    until("no node", lambda: not workers(cluster))


def test_scale_refuses_more_than_the_profile_allows_and_unknown_groups(
    cluster: ClusterConnection, steadyray: Command
) -> None:
    code, _, err = steadyray("cluster", "scale", "cpu", "9", "-n", cluster.name)
    assert (code, "3 nodes at most" in err) == (3, True)
    code, _, err = steadyray("cluster", "scale", "tpu", "1", "-n", cluster.name)
    assert (code, "there is: cpu, gpu" in err) == (1, True)


def test_status_says_what_waits_and_why(
    cluster: ClusterConnection, jobs: Jobs, steadyray: Command, tmp_path: Path
) -> None:
    job = jobs.submit(script(tmp_path, SLEEP), "0", '{"num_gpus": 8}')
    jobs.wait(job, "RUNNING")

    def waiting() -> list[str]:
        code, out, err = steadyray("cluster", "status", "-n", cluster.name, "-o", "json")
        assert code == 0, err
        return [f"{w['reason']}: {w['message']}" for w in json.loads(out)["waiting"]]

    until("the reason", lambda: "NoGroupFits: no group has GPU 8 (at most 1 on one node)" in waiting())
    jobs.client.post(f"/api/jobs/{job}/stop")
    jobs.wait(job, "STOPPED")


def test_status_shows_a_node_that_did_not_start_with_its_log(
    cluster: ClusterConnection, steadyray: Command
) -> None:
    def starting() -> NodeRecord | None:
        records = local_cluster.node_records(cluster.name)
        return next((r for r in records if r.group == "cpu" and r.starter and not r.raylet), None)

    def killed_while_it_starts() -> NodeRecord:
        found = until("a node that starts", starting)
        local_cluster.kill_node(cluster.name, found.instance)
        return found

    until("nothing is left of the test before", lambda: not workers(cluster))  # or no node need start
    with ThreadPoolExecutor(1) as beside:  # a start takes about a second, less than the command may
        watch = beside.submit(killed_while_it_starts)
        steadyray("cluster", "scale", "cpu", "1", "-n", cluster.name, "--timeout", "0")
        failed = watch.result()
    folder = local_cluster.folder_of(cluster.name)
    until("its end is noted", lambda: failed.instance in [f.instance for f in folder.read_failed_starts()])
    code, out, err = steadyray("cluster", "status", "-n", cluster.name)
    assert code == 0, err
    assert failed.instance in out
    assert f"{failed.temp_dir}/start.log" in out
    until("another node", lambda: workers(cluster))
    steadyray("cluster", "scale", "cpu", "0", "-n", cluster.name)
    until("no node", lambda: not workers(cluster))


def test_a_killed_node_that_is_needed_is_replaced(cluster: ClusterConnection, steadyray: Command) -> None:
    steadyray("cluster", "scale", "cpu", "1", "-n", cluster.name)
    lost = workers(cluster)[0]
    assert local_cluster.kill_node(cluster.name, lost.instance) > 1
    until("another node", lambda: [n for n in workers(cluster) if n.instance != lost.instance])
    steadyray("cluster", "scale", "cpu", "0", "-n", cluster.name)
    until("no node", lambda: not workers(cluster))


def test_an_idle_node_is_drained_and_removed(cluster: ClusterConnection, steadyray: Command) -> None:
    steadyray("cluster", "scale", "cpu", "1", "-n", cluster.name)
    node = until("the only node", lambda: only_worker(cluster))[0]
    code, out, err = steadyray("node", "remove", node.instance, "-n", cluster.name, "-o", "json")
    assert code == 0, err
    assert json.loads(out) == {"node": node.instance, "state": "Removed", "cut": []}
    assert node.raylet is not None
    assert not node.raylet.alive()
    steadyray("cluster", "scale", "cpu", "0", "-n", cluster.name)


def test_a_busy_node_is_ended_at_the_deadline_and_the_cut_work_is_named(
    cluster: ClusterConnection, jobs: Jobs, steadyray: Command, tmp_path: Path
) -> None:
    job = jobs.submit(script(tmp_path, SLEEP), "600", '{"num_cpus": 1, "max_retries": 0}')
    jobs.wait(job, "RUNNING")
    working = until(
        "the task runs",
        lambda: [n for n in workers(cluster) if "ray::sleep" in titles(cluster, n)],
        seconds=60,
    )[0]
    code, out, err = steadyray(
        "node", "remove", working.instance, "-n", cluster.name, "--deadline", "1", "-o", "json"
    )
    assert code == 4, err
    data = json.loads(out)
    assert data["state"] == "TimedOut"
    assert "sleep" in data["cut"]
    assert not local_cluster.processes(cluster.name, working.instance)
    jobs.client.post(f"/api/jobs/{job}/stop")


def titles(cluster: ClusterConnection, node: NodeRecord) -> str:
    words = []
    for process in local_cluster.processes(cluster.name, node.instance):
        with contextlib.suppress(psutil.NoSuchProcess):
            words += process.cmdline()
    return " ".join(words)


@pytest.mark.parametrize("by", ["name", "address"])
def test_the_head_is_never_removed(cluster: ClusterConnection, steadyray: Command, by: str) -> None:
    record = head(cluster)
    name = record.instance if by == "name" else record.address
    code, _, err = steadyray("node", "remove", name, "-n", cluster.name)
    assert (code, "is the head" in err) == (3, True)
    assert record.raylet is not None
    assert record.raylet.alive()


def test_an_unknown_node_is_refused(cluster: ClusterConnection, steadyray: Command) -> None:
    code, _, err = steadyray("node", "remove", "cpu-000000", "-n", cluster.name)
    assert (code, err.count("no node cpu-000000")) == (1, 1), "said once"
