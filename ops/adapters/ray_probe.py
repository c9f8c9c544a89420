"""What only Ray's own client can ask or tell a cluster: demand, draining, an idle clock. Prints JSON.

Run by `local_ray` as `python -m ops.adapters.ray_probe COMMAND …` with the cluster's own Python and
Ray and its token in the environment: the tools themselves never load a Ray client (it may be of another
version than the cluster's, and it keeps threads and sockets).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ray._raylet import GcsClient, GcsClientOptions  # type: ignore[attr-defined]
from ray.autoscaler.v2.schema import NodeInfo
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.core.generated import autoscaler_pb2

REASONS = {
    "idle": autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_IDLE_TERMINATION,
    "removal": autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION,
}
TIMEOUT_SECONDS = 10


def status(address: str) -> dict[str, Any]:
    """Nodes that Ray knows to live, what waits for resources, and which nodes are being drained."""
    found = get_cluster_status(address, TIMEOUT_SECONDS)
    demands = found.resource_demands
    waiting = [
        {"kind": kind, "bundle": dict(by_count.bundle), "count": by_count.count}
        for kind, entries in (
            ("task or actor", demands.ray_task_actor_demand),
            ("placement group", demands.placement_group_demand),
        )
        for entry in entries
        for by_count in entry.bundles_by_count
    ]
    return {
        "nodes": [_node(node) for node in [*found.active_nodes, *found.idle_nodes]],
        "waiting": waiting,
        "draining": draining(address),
        "failed_launches": [f"{f.ray_node_type_name}: {f.details}" for f in found.failed_launches],
    }


def _node(node: NodeInfo) -> dict[str, Any]:
    idle_ms = node.resource_usage.idle_time_ms if node.resource_usage else 0
    return {
        "id": node.node_id,
        "instance": node.instance_id,
        "group": node.ray_node_type_name,
        "address": node.ip_address,
        "idle_seconds": idle_ms / 1000,
        "used": {key: value for key, value in node.used_resources().items() if value},
        "total": node.total_resources(),
        "activity": list(node.node_activity or []),
    }


def draining(address: str) -> dict[str, int]:
    """Node ids that are being drained, with their deadline in ms since 1970; 0 = none. Nothing else shows
    it."""
    from ray._private.state import GlobalState

    state = GlobalState()
    state._initialize_global_state(
        GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    )
    return dict(state.get_draining_nodes())


def drain(address: str, node_id: str, reason: str, message: str, deadline_ms: str) -> dict[str, Any]:
    """Ask for a drain. `accepted` proves nothing: Ray accepts unknown ids. `draining` is looked up
    afterwards."""
    accepted, why = GcsClient(address=address).drain_node(
        node_id, REASONS[reason], message, int(deadline_ms), timeout=TIMEOUT_SECONDS
    )
    return {"accepted": accepted, "why": why, "draining": node_id in draining(address)}


def main() -> None:
    command, address, *arguments = sys.argv[1:]
    commands: dict[str, Any] = {"status": status, "drain": drain}
    json.dump(commands[command](address, *arguments), sys.stdout)


if __name__ == "__main__":
    main()
