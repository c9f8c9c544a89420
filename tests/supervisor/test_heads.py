"""The head dies, or the whole cluster does; each in a cluster of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from conftest import CHECKPOINTING, Desk, driver_of, wait_for
from ops.adapters import local_cluster
from ops.adapters.local_cluster import ClusterConnection
from ops.adapters.local_processes import end, marked
from ops.profile import merge


@pytest.fixture
def own_desk(
    tmp_path: Path, steadyray_home: Path, make_cluster: Callable[..., ClusterConnection]
) -> Iterator[Desk]:
    """A desk with a cluster that the test may harm."""
    cluster = make_cluster({"groups": {"cpu": {"min": 1}}, "job_stop_seconds": 2})
    made = Desk(tmp_path, steadyray_home, cluster.name)
    yield made
    made.close()
    local_cluster.down(cluster.name)


def begun(desk: Desk, run: str) -> list[list[int]]:
    """[attempt, step after which it began] of every start of the script."""
    lines = (desk.directory(run) / "trace.txt").read_text().splitlines()
    return [[int(word) for word in line.split()[:2]] for line in lines]


def start_and_wait(desk: Desk, run: str, script: str, step: int) -> Path:
    """Start a run that stops at `step` until its gate is opened."""
    gate = desk.directory(run) / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text(str(step))
    desk.start(*desk.job(run), script, str(step + 5))
    driver_of(desk, run, 1)
    wait_for(lambda: desk.read(run, "attempts/0001/progress.json").get("step") == step, f"step {step}")
    return gate


def kill_all(cluster: str) -> None:
    found = local_cluster.find(cluster)
    assert found is not None
    uuid = found.cluster["uuid"]
    end(lambda: marked(uuid, "keeper"), grace_seconds=0.0)
    end(lambda: marked(uuid), grace_seconds=0.0)


@pytest.mark.ray
def test_a_killed_head_comes_back_and_the_job_never_notices(own_desk: Desk) -> None:
    script = own_desk.script("train.py", CHECKPOINTING)
    gate = start_and_wait(own_desk, "headless", script, 5)
    head = next(n for n in local_cluster.node_records(own_desk.cluster) if n.is_head)
    assert local_cluster.kill_node(own_desk.cluster, head.instance) > 0
    connection = local_cluster.connection(own_desk.cluster)
    wait_for(lambda: not local_cluster.answers(connection), "the silence")
    wait_for(lambda: local_cluster.answers(connection), "a new head, by the keeper")
    wait_for(lambda: own_desk.events("headless", "ClusterSilent") != [], "a note of the silence")
    gate.write_text("99")
    _, err = own_desk.started[0].communicate(timeout=240)
    assert own_desk.started[0].returncode == 0, err
    assert begun(own_desk, "headless") == [[1, 0]], "one attempt, one start, no step redone"
    assert own_desk.events("headless", "ActionTaken") == [], "silence leads to nothing"
    [silence] = own_desk.events("headless", "ClusterSilent")
    assert silence["data"]["head_replaced"], "and is told in the report"


@pytest.mark.ray
def test_a_head_that_died_with_its_keeper_is_started_by_the_supervisor(own_desk: Desk) -> None:
    script = own_desk.script("train.py", CHECKPOINTING)
    gate = start_and_wait(own_desk, "unkept", script, 5)
    found = local_cluster.find(own_desk.cluster)
    assert found is not None
    assert found.keeper is not None
    head = next(n for n in local_cluster.node_records(own_desk.cluster) if n.is_head)
    end(lambda: marked(found.cluster["uuid"], "keeper"), grace_seconds=0.0)
    gcs = next(p for p in marked(found.cluster["uuid"], head.instance) if p.name() == "gcs_server")
    gcs.kill()
    wait_for(lambda: own_desk.events("unkept", "ActionTaken") != [], "a new keeper")
    wait_for(lambda: local_cluster.answers(local_cluster.connection(own_desk.cluster)), "a new head")
    gate.write_text("99")
    _, err = own_desk.started[0].communicate(timeout=240)
    assert own_desk.started[0].returncode == 0, err
    assert begun(own_desk, "unkept") == [[1, 0]], "one attempt, one start, no step redone"
    [act] = own_desk.events("unkept", "ActionTaken")
    assert act["data"]["action"] == "RestartKeeper"
    now = local_cluster.find(own_desk.cluster)
    assert now is not None
    assert now.keeper not in (None, found.keeper)


@pytest.mark.ray
def test_a_cluster_that_was_killed_is_made_again_and_the_run_goes_on_from_its_checkpoint(
    own_desk: Desk,
) -> None:
    """B06: cause head lost, the attempt number goes up, resumed, charged once."""
    script = own_desk.script("train.py", CHECKPOINTING)
    gate = start_and_wait(own_desk, "all-killed", script, 5)
    kill_all(own_desk.cluster)
    gate.write_text("99")
    _, err = own_desk.started[0].communicate(timeout=280)
    assert own_desk.started[0].returncode == 0, err
    starts = begun(own_desk, "all-killed")
    assert [s[0] for s in starts] == [1, 2]
    assert starts[1][1] >= 5
    incidents = own_desk.events("all-killed", "IncidentOpened")
    assert [i["data"]["failure_class"] for i in incidents] == ["HeadLost"]
    acts = [a["data"] for a in own_desk.events("all-killed", "ActionTaken")]
    assert [a["action"] for a in acts] == ["RecreateCluster", "Resubmit"]
    assert acts[1]["depth"] == "new-cluster"
    charged = [
        p
        for p in (own_desk.directory("all-killed") / "actions").iterdir()
        if '"charged": true' in p.read_text()
    ]
    assert len(charged) == 1


@pytest.mark.ray
def test_a_machine_that_is_not_ready_to_make_the_cluster_again_costs_a_pause_and_not_the_run(
    own_desk: Desk,
) -> None:
    script = own_desk.script("train.py", CHECKPOINTING)
    gate = start_and_wait(own_desk, "unready", script, 5)
    profile = local_cluster.folder_of(own_desk.cluster).profile_file
    good = profile.read_text()
    too_much = {"groups": {"cpu": {"min": 10**6, "max": 10**6}}}
    profile.write_text(yaml.safe_dump(merge(yaml.safe_load(good), too_much)))
    kill_all(own_desk.cluster)
    gate.write_text("99")
    wait_for(lambda: "not be made again" in str(own_desk.events("unready", "Waiting")), "a failed try")
    profile.write_text(good)
    _, err = own_desk.started[0].communicate(timeout=280)
    assert own_desk.started[0].returncode == 0, err
    assert [s[0] for s in begun(own_desk, "unready")] == [1, 2]
    acts = [a["data"]["action"] for a in own_desk.events("unready", "ActionTaken")]
    assert acts == ["RecreateCluster", "Resubmit"]
