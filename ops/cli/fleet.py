"""`steadyray fleet`: the breaker that holds back all automation of a runs folder, for a person to look at,
close and open."""

from __future__ import annotations

import getpass
import math
import shlex
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.adapters.clock import SystemClock
from ops.adapters.run_store import open_beside
from ops.config import runs_root
from ops.errors import NotFoundError, UsageError
from ops.fleet import FOLDER, Fleet
from ops.output import Format, local_time, note, show
from ops.policy.breaker import Limits

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
    return Fleet(lambda: open_beside(root, FOLDER), SystemClock(), f"steadyray fleet close{elsewhere}")


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
    note(f"the breaker is closed; it was open: {was.why}" if was else "the breaker was not open")
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


@app.command()
def limit(
    acts: Annotated[int, typer.Argument(help="Attempts that may be acted on within the window.", min=0)],
    minutes: Annotated[float, typer.Option(help="Length of the window.", min=0.1)] = 10.0,
    storage: Storage = None,
    output: Output = Format.TABLE,
) -> None:
    """How much automation may do before the breaker opens, for all supervisors of these runs.

    Choose more than the number of runs that one node or one cluster carries, as all of them are acted on when
    it is lost. Examples: `steadyray fleet limit 100` and `steadyray fleet limit 40 --minutes 30`.
    """
    if not math.isfinite(minutes):
        raise UsageError(f"--minutes {minutes} is no length of time", hint="for example --minutes 10")
    fleet = fleet_of(_root(storage))
    fleet.limit(Limits(acts, minutes * 60))
    note(f"the breaker opens beyond {acts} attempts in {minutes:g} minutes")
    if output is not Format.TABLE:
        show(_status(fleet), output)


def _root(storage: str | None) -> str:
    """Raises NotFoundError for a folder that is not there: nobody's breaker would be opened or closed."""
    if storage and "://" not in storage and not Path(storage).expanduser().is_dir():
        raise NotFoundError(f"there is no folder {storage}", hint="name the one in which the runs are kept")
    return (storage or runs_root()).rstrip("/")


def _status(fleet: Fleet) -> dict[str, Any]:
    opened, found, limits = fleet.opened(), fleet.acts(), fleet.limits()
    return {
        "breaker": "closed" if opened is None else "open",
        "why": opened.why if opened else None,
        "since": local_time(opened.time) if opened and opened.time is not None else None,
        "opened_by": opened.who or None if opened else None,
        "run": opened.run or None if opened else None,
        "acts": found.acts,
        "allowed": limits.acts,
        "window_seconds": limits.window_seconds,
        "close_it": f"{fleet.close_command} --why TEXT" if opened else None,
    }


def _person() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container may know no name for its user
        return f"somebody@{socket.gethostname()}"
