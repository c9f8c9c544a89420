"""One screen for the terminal: how the run went, its time line, where the time went, what went wrong.

Called by `steadyray report` and at the end of `steadyray job run`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ops import report_words as words
from ops.policy.ledger import Category, Ledger
from ops.report import Report

SHOWN_INCIDENTS = 8
"""More would push the ledger off the screen; the page has them all."""

STATE_STYLES = {"Succeeded": "bold green", "Failed": "bold red", "Stopped": "bold yellow"}


def print_summary(report: Report, console: Console, page: Path | None = None) -> None:
    """Print the screen; `page` is where the HTML report was written."""
    console.print(Group(*_parts(report, min(console.width, 110), page)))


def _parts(report: Report, width: int, page: Path | None) -> Iterator[RenderableType]:
    state = Text(report.state, style=STATE_STYLES.get(report.state, "bold blue"))
    yield Text.assemble("Run ", (report.run, "bold"), "  ", state)
    yield Text(words.headline(report))
    yield Text()
    if report.ledger.total_seconds > 0:
        yield from _time_line(report.ledger, width)
        yield Text()
        yield _ledger_table(report.ledger)
    if report.ledger.incidents:
        yield Text()
        yield _incidents(report)
    yield Text()
    yield _results(report, page)
    for problem in report.problems:
        yield Text(f"Note: {problem}", style="yellow")


def _time_line(book: Ledger, width: int) -> Iterator[Text]:
    """Time from left to right; each cell has the colour of what took most of it, faults are marked below."""
    total, start = book.total_seconds, book.timeline.start
    cells = [start + total * (i + 0.5) / width for i in range(width)]
    bar, slices, at = Text(), iter(book.slices), None
    at = next(slices, None)
    for moment in cells:
        while at is not None and at.end < moment:
            at = next(slices, None)
        category = at.category if at else Category.OTHER
        bar.append(_GLYPHS.get(category, "█"), style=words.COLOURS[category])
    marks = [" "] * width
    for cost in book.incidents:
        marks[min(width - 1, int((cost.incident.fault_time - start) / total * width))] = "▲"
    yield bar
    yield Text("".join(marks), style=words.COLOURS[Category.DETECTION])
    end = words.clock(total)
    yield Text("0:00" + " " * (width - 4 - len(end)) + end, style="dim")


_GLYPHS = {
    Category.STARTUP: "░",
    Category.WAITING: "░",
    Category.STOPPED: " ",
    Category.DETECTION: "▒",
    Category.RESTART: "▒",
    Category.REDONE: "▓",
}
"""The bar has to be readable without colours as well."""


def _ledger_table(book: Ledger) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("where the time went")
    for name in ("seconds", "share", "worker-hours"):
        table.add_column(name, justify="right")
    table.add_column("")
    for category, label in words.LABELS.items():
        seconds = book.seconds[category]
        if seconds <= 0:
            continue
        share = seconds / book.total_seconds
        bar = Text("█" * max(1, round(share * 24)), style=words.COLOURS[category])
        hours = book.worker_seconds[category] / 3600
        table.add_row(label, words.figure(seconds), words.percent(share), f"{hours:.3f}", bar)
    table.add_row(
        "total", words.figure(book.total_seconds), "100.0%", f"{book.worker_hours:.3f}", "", style="bold"
    )
    return table


def _incidents(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("at", "what went wrong", "what was done"):
        table.add_column(name, overflow="fold")
    table.add_column("back after", justify="right", no_wrap=True)
    table.add_column("redone", justify="right")
    costs, start = report.ledger.incidents, report.ledger.timeline.start
    for cost in costs[-SHOWN_INCIDENTS:]:
        incident = cost.incident
        false = " (false alarm)" if incident.false_alarm else ""
        table.add_row(
            words.clock(incident.fault_time - start),
            escape(f"{words.what_happened(incident)}{false}"),
            escape(words.what_was_done(incident)),
            words.seconds_text(cost.back_seconds),
            str(cost.steps_lost),
        )
    return table


def _results(report: Report, page: Path | None) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    if report.quality:
        name, value = words.metric(*report.quality)
        table.add_row(escape(name), value)
    mean = report.ledger.mean_recovery_seconds
    recovery = "" if mean is None else f", mean recovery {words.seconds_text(mean)}"
    table.add_row("goodput", f"{words.percent(report.ledger.goodput)}{recovery}")
    if report.model:
        table.add_row("model", escape(report.model))
    if page is not None:
        table.add_row("report", escape(str(page)))
    return table
