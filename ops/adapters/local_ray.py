"""The nodes of a local cluster as Ray sees them, put together with what the provider and the processes say.

Used by `steadyray cluster status`, `cluster scale` and `node`. Ray's client runs in a process of its own
(`ray_probe`), with the cluster's token.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil

from ops.adapters.local_cluster import ClusterConnection, folder_of, profile_of
from ops.adapters.local_nodes import HEAD, ClusterFolder, FailedStart, NodeRecord
from ops.adapters.local_processes import end, marked
from ops.errors import ClusterError
from ops.policy.draining import NodeFacts
from ops.policy.scaling import Demand, GroupView
from ops.profile import Group
from ops.render import node_resources

PROBE_SECONDS = 40.0
"""Import of Ray (1 s quiet, 10 s on a busy machine), three calls of at most 10 s."""


@dataclass(frozen=True)
class LocalNode:
    """One node. `id` is Ray's, empty until it has joined."""

    instance: str
    group: str
    address: str
    state: str
    id: str = ""
    idle_seconds: float = 0.0
    used: dict[str, float] = field(default_factory=dict)
    drain_deadline: float | None = None

    def named(self, name: str) -> bool:
        """Whether a person means this node: our name, its address, or Ray's id or the start of it."""
        return name in (self.instance, self.address) or (len(name) >= 6 and self.id.startswith(name))


@dataclass(frozen=True)
class Seen:
    """One look at a cluster."""

    nodes: tuple[LocalNode, ...]
    waiting: tuple[Demand, ...]
    failed_starts: tuple[FailedStart, ...]


def look(cluster: ClusterConnection) -> Seen:
    """Ask Ray and the provider's files. Raises ClusterError when the head does not answer."""
    answer = probe(cluster, "status")
    by_instance = {node["instance"]: node for node in answer["nodes"]}
    folder = folder_of(cluster.name)
    records = folder.records()
    nodes = tuple(_node(record, by_instance.get(record.instance), answer["draining"]) for record in records)
    waiting = tuple(Demand(d["bundle"], d["count"], d["kind"]) for d in answer["waiting"])
    monitor = str(cluster.temp_dir / HEAD / "session_latest/logs/monitor.log")
    launches = (text.partition(": ") for text in answer["failed_launches"])
    failed = (FailedStart("", group, why, monitor) for group, _, why in launches)
    return Seen(nodes, waiting, (*folder.read_failed_starts(), *failed))


def _node(record: NodeRecord, ray: dict[str, Any] | None, draining: dict[str, int]) -> LocalNode:
    alive = record.raylet is not None and record.raylet.alive()
    node_id = ray["id"] if ray else ""
    if node_id in draining:
        state = "draining"
    elif ray and alive:
        state = "idle" if not ray["activity"] else "busy"
    else:
        state = "starting" if record.raylet is None or alive else "dead"
    deadline_ms = draining.get(node_id)
    return LocalNode(
        instance=record.instance,
        group=record.group,
        address=record.address,
        state=state,
        id=node_id,
        idle_seconds=ray["idle_seconds"] if ray else 0.0,
        used=ray["used"] if ray else {},
        drain_deadline=deadline_ms / 1000 if deadline_ms else None,
    )


def groups(cluster: ClusterConnection, seen: Seen) -> tuple[GroupView, ...]:
    """The node groups of the profile, filled with the nodes that are there."""
    return tuple(
        _group(name, group, [node for node in seen.nodes if node.group == name])
        for name, group in profile_of(cluster.name).groups.items()
    )


def _group(name: str, group: Group, nodes: list[LocalNode]) -> GroupView:
    counts = Counter(node.state for node in nodes)
    return GroupView(
        name=name,
        floor=group.min,
        max=group.max,
        offers=node_resources(group),
        ready=counts["busy"] + counts["idle"],
        starting=counts["starting"],
        draining=counts["draining"],
        idle=counts["idle"],
    )


def drain_idle(cluster: ClusterConnection, group: str, keep: int) -> tuple[list[str], list[str]]:
    """Drain idle nodes of a group, the longest idle first, until `keep` are left; drained, and busy ones
    over it.

    Ray itself refuses the drain of a node that has just got work.
    """
    nodes = [node for node in look(cluster).nodes if node.group == group and node.state in ("busy", "idle")]
    spare = sorted((n for n in nodes if n.state == "idle"), key=lambda n: -n.idle_seconds)
    excess = max(0, len(nodes) - keep)
    drained = [
        node.instance
        for node in spare[:excess]
        if probe(cluster, "drain", node.id, "idle", "steadyray cluster scale", "0")["accepted"]
    ]
    busy = [node.instance for node in nodes if node.instance not in drained]
    return drained, busy[: excess - len(drained)]


def probe(cluster: ClusterConnection, command: str, *arguments: str) -> Any:
    """Run `ray_probe` against the cluster; its JSON. Raises ClusterError."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "ops.adapters.ray_probe", command, cluster.gcs_address, *arguments],
            env={**kept, **cluster.environment()},
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"the head of cluster {cluster.name!r} did not answer within {PROBE_SECONDS:g} s",
            hint=f"see {cluster.folder}/keeper.log; the keeper restarts a head that died",
        ) from error
    if done.returncode:
        raise ClusterError(
            f"cannot ask cluster {cluster.name!r}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}",
            hint="look whether it is up: steadyray cluster status",
        )
    return json.loads(done.stdout)


class LocalNodes:
    """`ops.drain.Nodes` for a local cluster. Nodes are named by instance id."""

    def __init__(self, cluster: ClusterConnection, seen: Seen) -> None:
        self._cluster = cluster
        self._folder: ClusterFolder = folder_of(cluster.name)
        self._uuid = str(self._folder.cluster()["uuid"])
        self._ids = {node.instance: node.id for node in seen.nodes}
        self._draining: dict[str, bool] = {}

    def facts(self, node: str) -> NodeFacts | None:
        """From files and processes alone: cheap enough to ask five times a second."""
        record = self._folder.record(node)
        if record is None:  # the provider has seen its end and cleaned up, or it never was
            return NodeFacts(known=node in self._ids, alive=False, is_head=False)
        return NodeFacts(
            known=True,
            alive=bool(record.raylet and record.raylet.alive()),
            is_head=record.is_head,
            draining=self._draining.get(node, False),
            work=self._work(node),
        )

    def drain(self, node: str, seconds_left: float) -> bool:
        deadline_ms = int((time.time() + max(0.0, seconds_left)) * 1000)
        answer = probe(
            self._cluster, "drain", self._ids[node], "removal", "steadyray node remove", str(deadline_ms)
        )
        record = self._folder.record(node)
        left = not (record and record.raylet and record.raylet.alive())
        self._draining[node] = answer["draining"] or left
        return self._draining[node]

    def end(self, node: str) -> None:
        end(lambda: marked(self._uuid, node), grace_seconds=1.0)

    def _work(self, node: str) -> tuple[str, ...]:
        """Titles of Ray workers that do something: `ray::Rank.step`, and drivers."""
        titles = []
        for process in marked(self._uuid, node):
            with contextlib.suppress(psutil.NoSuchProcess):
                title = (process.cmdline() or [""])[0].split(" ")[0]
                agents = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
                if title.startswith("ray::") and title not in agents:
                    titles.append(title.removeprefix("ray::"))
        return tuple(sorted(titles))
