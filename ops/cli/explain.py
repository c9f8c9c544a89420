"""`steadyray explain`: why a job ended, from nothing but its log. Needs no cluster and no run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ops import explain_log
from ops.errors import NotFoundError, UsageError
from ops.output import Format, show


def explain(
    log: Annotated[Path, typer.Option("--log", help="The log of any job; `-` reads standard input.")],
    output: Annotated[
        Format, typer.Option("-o", "--output", help="Table for people; json and yaml have stable keys.")
    ] = Format.TABLE,
) -> None:
    """Why a job ended, from nothing but its log: class, culprit, evidence, what to do.

    Works on any file, also one of many gigabytes, and needs no cluster. Secrets in quoted lines are hidden.
    Examples: `steadyray explain --log driver.log` and `kubectl logs POD | steadyray explain --log - -o json`.
    For a run of the supervisor: `steadyray job explain NAME`.
    """
    story = _from_stdin() if str(log) == "-" else _from_file(log)
    if output is Format.TABLE:
        typer.echo(explain_log.as_text(story))
    else:
        show(story, output)


def _from_stdin() -> dict[str, object]:
    return explain_log.explain(sys.stdin.buffer, "standard input")


def _from_file(path: Path) -> dict[str, object]:
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name one file: steadyray explain --log FILE")
    try:
        with path.open("rb") as stream:
            return explain_log.explain(stream, str(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}", hint="`-` reads standard input") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
