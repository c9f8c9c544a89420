"""`steadyray audit`: what automation decided, did and withheld, over all runs. Parses and prints."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from ops.adapters import places
from ops.audit import audit as audit_of
from ops.cli.report import find
from ops.errors import UsageError
from ops.output import Format, local_time, note, show
from ops.ports import RunStore

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
COLUMNS = ("time", "run", "attempt", "failure_class", "decided", "done", "who", "undo", "outcome")


def audit(
    run: Annotated[
        str | None, typer.Argument(help="Name of one run; default: all.", show_default=False)
    ] = None,
    since: Annotated[str, typer.Option("--since", help="How far back: 90s, 30m, 12h, 7d or 2w.")] = "7d",
    output: Annotated[
        Format, typer.Option("-o", "--output", help="Table for people; json and yaml have stable keys.")
    ] = Format.TABLE,
) -> None:
    """What automation decided about each incident, what was done or withheld, by whom, how to take it back,
    and what came of it; newest first.

    Changes nothing and asks no cluster. DECIDED is what `--mode observe` decides as well, DONE what happened.
    Examples: `steadyray audit --since 7d` and `steadyray audit digits -o json`.
    """
    told = audit_of(_runs(run), time.time() - seconds(since))
    for problem in told["problems"]:
        note(problem)
    if output is Format.TABLE:
        _print(told)
    else:
        show(told, output)


def seconds(word: str) -> float:
    """Raises UsageError for what is no span of time."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", word.strip())
    if found is None:
        raise UsageError(f"--since {word!r} is no span of time", hint="for example --since 7d, 12h or 30m")
    return float(found[1]) * UNITS[found[2]]


def _runs(run: str | None) -> list[tuple[str, Callable[[], RunStore]]]:
    if run is not None:
        return [(run, lambda: find(run))]
    return [(name, partial(places.store, name)) for name in places.names()]


def _print(told: dict[str, Any]) -> None:
    if not told["incidents"]:
        note("nothing else is known" if told["problems"] else "nothing went wrong in that time")
        return
    rows = [{**item, "time": local_time(item["time"])} for item in told["incidents"]]
    for row in rows:
        row["done"] = "nothing (withheld)" if row["withheld"] else row["done"]
        row["undo"] = row["undo"] or (f"by hand: {row['by_hand']}" if row["by_hand"] else "")
    show(rows, Format.TABLE, COLUMNS)
    typer.echo()
    show(told["counts"], Format.TABLE)
    typer.echo(f"{len(rows)} incidents, {told['withheld']} withheld")
