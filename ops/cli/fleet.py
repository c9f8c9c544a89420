"""`steadyray fleet`: the breaker that holds back all automation of a runs folder, for a person to look at,
close and open."""

from __future__ import annotations

import getpass
import shlex
import socket
import time
from typing import Annotated, Any

import typer

from ops.adapters.clock import SystemClock
from ops.adapters.run_store import open_store
from ops.config import runs_root
from ops.fleet import FOLDER, Fleet
from ops.output import Format, note, show

app = typer.Typer(no_args_is_help=True, help="The breaker over all runs: look at it, close it, open it.")

Output = Annotated[Format, typer.Option("-o", "--output", help="table, json or yaml.")]
Storage = Annotated[
    str | None,
    typer.Option("--storage", help="Where the runs are kept, if not in STEADYRAY_RUNS or the home folder."),
]
Why = Annotated[str, typer.Option("--why", help="For whoever reads it later.")]


def fleet_of(root: str) -> Fleet:
    """The fleet of the runs under `root`."""
    elsewhere = "" if root == runs_root() else f" --storage {shlex.quote(root)}"
    return Fleet(lambda: open_store(root, FOLDER), SystemClock(), f"steadyray fleet close{elsewhere}")


@app.command()
def status(storage: Storage = None, output: Output = Format.TABLE) -> None:
    """Whether automation is held back, why, and how many automated acts there were of late.

    Examples: `steadyray fleet status` and `steadyray fleet status -o json`.
    """
    show(_status(fleet_of(_root(storage))), output)


@app.command()
def close(why: Why = "", storage: Storage = None, output: Output = Format.TABLE) -> None:
    """Let automation go on. Only a person does this; acts are counted from zero again.

    Examples: `steadyray fleet close --why "the switch is repaired"` and `steadyray fleet close -o json`.
    """
    fleet = fleet_of(_root(storage))
    was = fleet.close(_person(), why)
    note("the breaker is closed; it was open: " + str(was["why"]) if was else "the breaker was not open")
    if output is not Format.TABLE:
        show(_status(fleet), output)


@app.command("open")
def open_(why: Why = "opened by a person", storage: Storage = None, output: Output = Format.TABLE) -> None:
    """Hold back all automation until somebody closes the breaker; what a person asks for is done.

    Examples: `steadyray fleet open --why maintenance` and `steadyray fleet open -o json`.
    """
    fleet = fleet_of(_root(storage))
    opened = fleet.trip(why, {"who": _person(), "host": socket.gethostname()})
    note("the breaker is open" if opened else "the breaker was open already")
    note(f"let automation go on: {fleet.close_command} --why TEXT")
    if output is not Format.TABLE:
        show(_status(fleet), output)


def _root(storage: str | None) -> str:
    return (storage or runs_root()).rstrip("/")


def _status(fleet: Fleet) -> dict[str, Any]:
    opened, found = fleet.opened(), fleet.acts()
    since = opened.get("time") if opened else None
    return {
        "breaker": "closed" if opened is None else "open",
        "why": opened.get("why") if opened else None,
        "since": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(since))) if since else None,
        "opened_by": opened.get("who") if opened else None,
        "run": opened.get("run") if opened else None,
        "acts": found.acts,
        "allowed": fleet.limits.acts,
        "window_seconds": fleet.limits.window_seconds,
        "close_it": f"{fleet.close_command} --why TEXT" if opened else None,
    }


def _person() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container may know no name for its user
        return f"somebody@{socket.gethostname()}"
