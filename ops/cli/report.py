"""`steadyray report RUN`: what became of a run, on one screen and as one self-contained HTML page."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

import typer

from ops import config
from ops.adapters import places, run_store
from ops.errors import NotFoundError, StoreError
from ops.output import Format, Screen, show
from ops.ports import RunStore
from ops.report import Report, as_json, read_report
from ops.report_page import render_page
from ops.report_summary import print_summary

PAGE = "report.html"


def report(
    run: Annotated[str, typer.Argument(help="Name of the run, or the path of a run directory.")],
    output: Annotated[
        Format, typer.Option("-o", "--output", help="One screen for people, or data for programs.")
    ] = Format.TABLE,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Where to write the page; otherwise report.html in the run directory."),
    ] = None,
    open_: Annotated[
        Literal["yes", "no"], typer.Option("--open", help="Whether to show the page in a browser.")
    ] = "no",
) -> None:
    """Show how a run went: time line, where the time went, what went wrong, and where the model lies.

    Works while the run is still going, and changes nothing but the page that it writes.

    Examples:

        steadyray report digits

        steadyray report digits -o json | jq .goodput
    """
    page = present(find(run), Path(run).name, html, output)
    if open_ == "yes":
        webbrowser.open(page.as_uri())


def present(store: RunStore, run: str, html: Path | None = None, output: Format = Format.TABLE) -> Path:
    """Write the page and print the screen or the data; `job run` ends with it. Returns the page's path."""
    found = read_report(store, run)
    page = write_page(found, store.url, html)
    if output is Format.TABLE:
        print_summary(found, Screen(highlight=False), page)
    else:
        show({**as_json(found), "page": str(page)}, output)
    return page


def find(run: str) -> RunStore:
    """The store of a run given by name or path. Raises NotFoundError with the names that there are."""
    path = Path(run)
    if path.name != run and path.is_dir():
        return run_store.open_store(str(path.parent), path.name)
    root, names = config.runs_root(), places.names()
    if run not in names:
        known = ", ".join(names[-10:]) if names else "none yet"
        raise NotFoundError(f"There is no run {run!r} in {root}.", hint=f"Runs there are: {known}.")
    return places.store(run)


def write_page(found: Report, url: str, html: Path | None = None) -> Path:
    """Write the page beside the run, or into the current folder where the run lies on remote storage."""
    beside = Path(f"{found.run}-{PAGE}") if "://" in url else Path(url) / PAGE
    page = (html or beside).absolute()
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        # a lone surrogate in a script's words has no UTF-8
        page.write_text(render_page(found), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StoreError(
            f"The report could not be written to {page}: {error.strerror}.",
            hint=f"Name another place: steadyray report {found.run} --html FILE",
        ) from error
    return page
