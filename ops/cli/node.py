"""`steadyray node`: list the nodes of a cluster, take one out."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ops import drain
from ops.adapters import local_cluster, local_ray
from ops.cli.cluster import Name, Output
from ops.errors import NotFoundError, OpsTimeoutError, RefusedError
from ops.output import Format, note, show, stderr
from ops.policy.draining import Removal, RemovalState

app = typer.Typer(no_args_is_help=True, help="List the nodes of a cluster, take one out.")

COLUMNS = ("name", "group", "state", "address", "idle_seconds", "used", "id")


@app.command("list")
def list_nodes(name: Name = "local", output: Output = Format.TABLE) -> None:
    """List the nodes of a cluster, and what each is doing.

    Examples:

        steadyray node list

        steadyray node list -o json
    """
    seen = local_ray.look(local_cluster.connection(name))
    rows = [
        {
            "name": node.instance,
            "group": node.group,
            "state": node.state,
            "address": node.address,
            "idle_seconds": round(node.idle_seconds, 1),
            "used": ", ".join(f"{key} {value:g}" for key, value in node.used.items()),
            "id": node.id,
        }
        for node in seen.nodes
    ]
    if output is Format.TABLE:
        rows = [{**row, "id": str(row["id"])[:12]} for row in rows]
    show(rows, output, COLUMNS)


@app.command()
def remove(
    node: Annotated[str, typer.Argument(help="Name, address or Ray id (or its start) of the node.")],
    deadline: Annotated[
        float, typer.Option("--deadline", help="Seconds that its work gets to end or move.", min=0)
    ] = 60.0,
    name: Name = "local",
    output: Output = Format.TABLE,
) -> None:
    """Drain a node and remove it: at once when it is empty, at the deadline whatever runs on it.

    Exit code 0: its work had ended. 4: the deadline passed and work was cut. 3: refused (the head, a dead
    node). 1: no such node. Where the group's floor or waiting work asks for it, a new node takes its place.

    Examples:

        steadyray node remove cpu-3fa2b1 --deadline 30

        steadyray node remove 127.18.3.2
    """
    cluster = local_cluster.connection(name)
    seen = local_ray.look(cluster)
    found = [candidate for candidate in seen.nodes if candidate.named(node)]
    if len(found) > 1:
        raise NotFoundError(f"{node!r} may be {', '.join(n.instance for n in found)}", hint="give more of it")
    target = found[0].instance if found else node
    removal = Removal(target, time.monotonic() + deadline)
    nodes = local_ray.LocalNodes(cluster, seen)
    with stderr.status(f"draining {target}") as line:
        last = ""
        while True:
            ticked = drain.tick(removal, nodes, time.monotonic)
            removal = ticked.removal
            line.update(ticked.decision.message)
            refused = removal.state is RemovalState.REFUSED  # said as an error below
            if ticked.decision.reason != last and not refused:
                note(ticked.decision.message)
                last = ticked.decision.reason
            if ticked.final:
                break
            time.sleep(ticked.wake_seconds)
    _say(removal, ticked.decision.message, output)


def _say(removal: Removal, message: str, output: Format) -> None:
    if removal.state is RemovalState.REFUSED:
        if removal.refusal == "UnknownNode":
            raise NotFoundError(message, hint="see: steadyray node list")
        raise RefusedError(message, hint="see: steadyray node list")
    show({"node": removal.node, "state": removal.state.value, "cut": list(removal.cut)}, output)
    if removal.state is RemovalState.TIMED_OUT:
        raise OpsTimeoutError(
            f"{removal.node} was busy at its deadline; cut: {', '.join(removal.cut) or 'no known work'}",
            hint="a longer --deadline lets work end or move first",
        )
