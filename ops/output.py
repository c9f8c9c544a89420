"""Data to stdout as table, JSON or YAML; everything else goes to stderr. Used by all commands."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Screen(Console):
    """Where a pipe has lost its reader, Rich ends the program: `job run … 2>&1 | head` would leave a run with
    nobody to look after it. What nobody reads on stderr is dropped, and data has no use any more."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())  # or Python fails once more at its exit
        if not self.stderr:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


stdout = Screen(highlight=False, soft_wrap=True)
stderr = Screen(stderr=True, highlight=False, soft_wrap=True)


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def show(data: Any, form: Format, columns: Iterable[str] = ()) -> None:
    """Print rows (a list of mappings) or one mapping; `columns` picks and orders those of the table."""
    if form is Format.JSON:
        typer.echo(json.dumps(_plain(data), indent=2))
    elif form is Format.YAML:
        typer.echo(yaml.safe_dump(_plain(data), sort_keys=False), nl=False)
    elif isinstance(data, Mapping):
        _pairs(data)
    else:
        _rows(list(data), list(columns))


def _plain(data: Any) -> Any:
    """What JSON can hold; it has neither NaN nor infinity, and a loss may be either."""
    return json.loads(json.dumps(data, default=str), parse_constant=lambda _: None)


def _rows(rows: list[Mapping[str, Any]], columns: list[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = columns or list(rows[0] if rows else ())
    for column in columns:
        table.add_column(column.replace("_", " ").upper(), overflow="fold")
    for row in rows:
        # escaped: messages quote other programs, and `[/data]` in one would end the command
        table.add_row(*(escape(word(row.get(column))) for column in columns))
    stdout.print(table)


def _pairs(data: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for key, value in data.items():
        table.add_row(key.replace("_", " "), escape(word(value)))
    stdout.print(table)


def word(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, list | tuple):
        nested = any(isinstance(v, list | tuple | Mapping) for v in value)
        return ("\n" if nested else ", ").join(word(v) for v in value) or "-"
    return str(value)


def local_time(seconds: float) -> str:
    """Wall clock seconds as people read them; a record may hold any number."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"


def note(message: str) -> None:
    """For people, on stderr; no markup, since messages quote other programs."""
    stderr.print(message, markup=False)
