"""`steadyray cluster`: make, look at, resize and end a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ops import profile as profiles
from ops import render as rendering
from ops import submission
from ops.adapters import local_cluster, local_ray, places
from ops.adapters.local_nodes import FailedStart
from ops.errors import ClusterError, NotFoundError, OpsError, OpsTimeoutError, RefusedError
from ops.output import Format, note, show, stderr
from ops.policy import scaling

app = typer.Typer(no_args_is_help=True, help="Make, look at, resize and end a cluster.")

Name = Annotated[str, typer.Option("--name", "-n", help="Name of the cluster.")]
ProfileOption = Annotated[
    str, typer.Option("--profile", "-p", help="A profile in cluster/profiles, or the path of one.")
]
Output = Annotated[
    Format, typer.Option("--output", "-o", help="Table for people; JSON or YAML for programs.")
]


def load(profile: str, name: str | None = None, free_ports: bool = False) -> profiles.Profile:
    """A profile by name or path, with what the command line lays over it."""
    path = Path(profile) if "/" in profile or profile.endswith(".yaml") else rendering.profile_path(profile)
    overrides: dict[str, Any] = {"name": name} if name else {}
    if free_ports:
        overrides["head"] = {"gcs_port": 0, "dashboard_port": 0}
    return profiles.load(path, overrides)


@app.command()
def up(
    profile: ProfileOption = "local",
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Name of the cluster instead of the profile's.")
    ] = None,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Take any free ports instead of the profile's.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Make a cluster, or find it running: a second time is harmless, and repairs a lost keeper.

    Examples:

        steadyray cluster up

        steadyray cluster up --name second --free-ports
    """
    wanted = load(profile, name, free_ports)
    started = time.monotonic()
    with stderr.status(f"starting cluster {wanted.name}"):
        cluster = local_cluster.up(wanted, note)
    note(f"cluster {wanted.name} is up after {time.monotonic() - started:.1f} s")
    show(
        {
            "name": cluster.name,
            "dashboard": cluster.dashboard_url,
            "gcs": cluster.gcs_address,
            "token_file": str(cluster.token_file),
            "logs": str(cluster.temp_dir),
        },
        output,
    )


@app.command()
def down(name: Name = "local", output: Output = Format.TABLE) -> None:
    """End a cluster: no process, port, socket, shared memory or temporary file is left. Harmless if there
    is none. Names the runs that are left unfinished.

    Examples:

        steadyray cluster down

        steadyray cluster down --name second
    """
    with stderr.status(f"ending cluster {name}"):
        ended = local_cluster.down(name, note)
    note(
        f"cluster {name} is gone ({ended} processes ended)" if ended else f"no cluster {name}: nothing to do"
    )
    unfinished = list(_unfinished(name))
    if unfinished:
        note(f"not finished, and nothing runs them now: {', '.join(unfinished)}")
        note(f"end one: steadyray job stop {unfinished[0]}")
        note(f"go on with it: steadyray cluster up --name {name}, then steadyray job run {unfinished[0]}")
    if output is not Format.TABLE:
        show({"name": name, "processes_ended": ended, "unfinished_runs": unfinished}, output)


def _unfinished(cluster: str) -> Iterator[str]:
    """Runs that count on a cluster. One that cannot be read is passed over: a cluster ends all the same."""
    unreadable = (OpsError, OSError, ValueError, LookupError, TypeError)
    with suppress(*unreadable):
        for run in places.names():
            with suppress(*unreadable):
                store = places.store(run)
                spec = submission.read_spec(store)
                if spec and spec.cluster == cluster and submission.finished_state(store) is None:
                    yield run


@app.command()
def status(name: Name = "local", output: Output = Format.TABLE) -> None:
    """Show nodes by group, what waits for resources, and why.

    Examples:

        steadyray cluster status

        steadyray cluster status -o json
    """
    cluster = local_cluster.connection(name)
    found = local_cluster.find(name)
    if found is None or not found.processes:
        raise ClusterError(
            f"cluster {name!r} has no living process: it was killed, or the machine was restarted",
            hint=f"start it again with `steadyray cluster up --name {name}`, or clear it with `cluster down`",
        )
    keeper = local_cluster.keeper_state(found)
    if keeper["state"] not in ("running", "gone"):
        raise ClusterError(
            f"the head of cluster {name!r} is {keeper['state']} {keeper['detail']}".strip(),
            hint=f"wait for it, or see {found.folder.keeper_log}",
        )
    seen = local_ray.look(cluster)
    groups = local_ray.groups(cluster, seen)
    missing = [scaling.explain(demand, groups) for demand in seen.waiting]
    data = {
        "name": name,
        "dashboard": cluster.dashboard_url,
        "keeper": keeper["state"],
        "head_restarts": keeper["restarts"],
        "groups": [_group_row(group) for group in groups],
        "waiting": [{"what": m.what, "reason": m.reason, "message": m.message} for m in missing],
        "failed_starts": [_failed_row(failed) for failed in seen.failed_starts],
    }
    if output is not Format.TABLE:
        show(data, output)
        return
    show({key: data[key] for key in ("name", "dashboard", "keeper", "head_restarts")}, output)
    show(data["groups"], output)
    show(data["waiting"] or {"waiting": "nothing waits for resources"}, output)
    for row in data["failed_starts"]:
        typer.echo(_failure(row))  # in no table: a path that is folded cannot be copied
    if keeper["state"] == "gone":
        note(f"the keeper is gone: nobody restarts a lost head. Type: steadyray cluster up --name {name}")


def _failed_row(failed: FailedStart) -> dict[str, Any]:
    return {
        "node": failed.instance,
        "group": failed.group,
        "seconds_ago": round(time.time() - failed.time) if failed.time else None,
        "why": failed.why,
        "log": failed.log,
    }


def _failure(row: dict[str, Any]) -> str:
    ago = "" if row["seconds_ago"] is None else f" {row['seconds_ago']} s ago"
    who = f"{row['node'] or 'a node'} of group {row['group']}"
    return f"{who} did not start{ago}: {row['why']}; see {row['log']}"


def _group_row(group: scaling.GroupView) -> dict[str, Any]:
    return {
        "group": group.name,
        "ready": group.ready,
        "idle": group.idle,
        "starting": group.starting,
        "draining": group.draining,
        "min": group.floor,
        "max": group.max,
        "per_node": scaling.words({k: v for k, v in group.offers.items() if k in ("CPU", "GPU")}),
    }


@app.command()
def scale(
    group: Annotated[str, typer.Argument(help="Node group of the profile.")],
    count: Annotated[int, typer.Argument(help="Nodes to have now, and to keep even when idle.", min=0)],
    name: Name = "local",
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for new nodes; 0 does not wait.", min=0)
    ] = 120.0,
    output: Output = Format.TABLE,
) -> None:
    """Grow a group to COUNT nodes, or shrink it: idle nodes go at once, busy ones when their work ends.

    Examples:

        steadyray cluster scale cpu 3

        steadyray cluster scale gpu 0
    """
    cluster = local_cluster.connection(name)
    view = _group(local_ray.groups(cluster, local_ray.look(cluster)), group)
    if refusal := scaling.scaled(view, count):
        raise RefusedError(refusal, hint="raise `max` in the profile and make the cluster again")
    local_cluster.set_floor(name, group, count)
    drained, busy = local_ray.drain_idle(cluster, group, count)
    for instance in drained:
        note(f"{instance} was idle and leaves")
    for instance in busy:
        note(f"{instance} is busy: it leaves when it has been idle; `steadyray node remove` sets a deadline")
    if timeout:
        _wait_for(cluster, group, count, timeout)
    note(f"group {group} keeps at least {count} node{'' if count == 1 else 's'}")
    if output is not Format.TABLE:
        show({"name": name, "group": group, "floor": count, "drained": drained, "busy": busy}, output)


def _group(groups: tuple[scaling.GroupView, ...], name: str) -> scaling.GroupView:
    for group in groups:
        if group.name == name:
            return group
    raise NotFoundError(f"no group {name!r}", hint=f"there is: {', '.join(group.name for group in groups)}")


def _wait_for(cluster: local_cluster.ClusterConnection, group: str, count: int, timeout: float) -> None:
    """Until so many nodes have joined. Watches the provider's files, which costs nothing, and then asks Ray
    whether one of them is on its way out.
    """

    def joined() -> int:
        if (started := local_cluster.ready_nodes(cluster.name, group)) < count:
            return started
        return _group(local_ray.groups(cluster, local_ray.look(cluster)), group).ready

    deadline = time.monotonic() + timeout
    with stderr.status(f"waiting for group {group} to have {count}"):
        while (ready := joined()) < count:
            if time.monotonic() > deadline:
                raise OpsTimeoutError(
                    f"group {group} has {ready} of {count} nodes after {timeout:g} s",
                    hint="they are still wanted; see `steadyray cluster status`",
                )
            time.sleep(0.2)


@app.command()
def render(
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", "-p", help="A profile by name or path; default: all those in cluster/profiles."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail where the file differs. For CI.")
    ] = False,
) -> None:
    """Write what the profiles become for their providers to cluster/rendered.

    Examples:

        steadyray cluster render

        steadyray cluster render --check
    """
    for one in [profile] if profile else rendering.profile_names():
        _render(load(one), check)


def _render(wanted: profiles.Profile, check: bool) -> None:
    path = rendering.rendered_path(wanted.name)
    text = rendering.launcher_yaml(wanted)
    if not check:
        path.write_text(text)
        note(f"wrote {path}")
    elif not path.exists() or path.read_text() != text:
        raise ClusterError(
            f"{path} is not what profile {wanted.name!r} renders to", hint="type: steadyray cluster render"
        )
