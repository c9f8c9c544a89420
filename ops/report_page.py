"""The report as one HTML page that needs nothing else: no network, no other file.

plotly.js is inside the page, and a content security policy forbids the page to load anything, so that
evidence copied from a log can neither run nor call home. Called by `steadyray report`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from ops import report_words as words
from ops.policy.ledger import Category, IncidentCost
from ops.report import LossPoint, Report

MAX_POINTS = 4_000
"""Points of the loss curve on the page; more only makes it heavy. Of each bucket the extremes are kept."""

MAX_SLICES = 2_000
"""Stretches on the time line; beyond it the shortest are left out, and the page says so."""

LOG_RATIO = 50.0
"""Of the highest to the lowest loss; above it the axis is logarithmic."""

GREY = "#7d8590"
"""Axes and texts of the charts: readable on white and on black."""

FAULT = words.COLOURS[Category.DETECTION]


def render_page(report: Report) -> str:
    """The whole page as text."""
    environment = Environment(
        loader=PackageLoader("ops", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        seconds=words.seconds_text, figure=words.figure, percent=words.percent, when=_when, clock=words.clock
    )
    book = report.ledger
    return environment.get_template("report.html.j2").render(
        report=report,
        book=book,
        line=book.timeline,
        headline=words.headline(report),
        tiles=_tiles(report),
        plotly_js=get_plotlyjs(),
        loss_chart=_div(_loss_chart(report)) if report.losses else "",
        time_chart=_div(_time_chart(report)) if book.total_seconds > 0 else "",
        share_chart=_div(_share_chart(report)) if book.total_seconds > 0 else "",
        shares=[
            (
                words.LABELS[c],
                words.MEANINGS[c],
                words.COLOURS[c],
                book.seconds[c],
                book.worker_seconds[c] / 3600,
            )
            for c in words.LABELS
            if book.seconds[c] > 0
        ],
        stories=[(cost, words.story(cost, book.timeline.start)) for cost in book.incidents],
        classes=words.CLASSES,
        labels=words.LABELS,
    )


def _when(time: float | None) -> str:
    return "–" if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """The figures to look at first: label, value, what it means."""
    book = report.ledger
    tiles = [
        ("goodput", words.percent(book.goodput), "share of the time that went into new training steps"),
        ("time", words.seconds_text(book.total_seconds), "from the request to the end"),
        ("incidents", str(len(book.incidents)), "things that went wrong on the way"),
    ]
    if report.quality:
        tiles.insert(0, (*words.metric(*report.quality), "how good the model is in the end"))
    if book.mean_recovery_seconds is not None:
        mean = words.seconds_text(book.mean_recovery_seconds)
        tiles.append(("recovery", mean, "mean time from the last good step to the next new one"))
    if book.steps_done:
        tiles.append(("steps redone", f"{book.steps_redone} of {book.steps}", "work that was paid twice"))
    return tiles


# --- charts ------------------------------------------------------------------------------------------
def _div(figure: Any) -> str:
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY, "family": "system-ui, sans-serif", "size": 13},
        hoverlabel={"align": "left", "font": {"family": "system-ui, sans-serif"}},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    grid = {"gridcolor": "rgba(125,133,144,.22)", "zeroline": False, "linecolor": GREY, "automargin": True}
    figure.update_xaxes(**grid)
    figure.update_yaxes(**grid)
    config = {"displaylogo": False, "responsive": True, "displayModeBar": False}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def _loss_chart(report: Report) -> Any:
    """Loss by step. Steps that were done again are a second line: it should lie on the first."""
    figure = go.Figure()
    first, again = _first_and_again(report.losses)
    for points, name, style in (
        (first, "loss", {"color": words.COLOURS[Category.SAVING], "width": 2}),
        (again, "done again", {"color": words.COLOURS[Category.REDONE], "width": 2, "dash": "dot"}),
    ):
        if points:
            figure.add_scatter(
                x=[None if p is None else p.step for p in points],
                y=[None if p is None else p.loss for p in points],
                mode="lines" if len(points) > 1 else "markers",
                name=name,
                line=style,
                hovertemplate="step %{x}<br>loss %{y:.4g}<extra></extra>",
            )
    marks = [(cost, step) for cost in report.ledger.incidents if (step := _step_of(report, cost)) is not None]
    if marks:
        figure.add_scatter(
            x=[step for _, step in marks],
            y=[_loss_at(report.losses, step) for _, step in marks],
            mode="markers",
            name="incident",
            marker={"symbol": "x", "size": 11, "color": FAULT},
            text=[_hover(report, cost) for cost, _ in marks],
            hovertemplate="%{text}<extra></extra>",
        )
        for _, step in marks:
            figure.add_vline(
                x=step, line={"color": words.COLOURS[Category.DETECTION], "width": 1, "dash": "dot"}
            )
    figure.update_layout(height=360, margin={"l": 60, "r": 20, "t": 40, "b": 45})
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="loss", **_scale(report.losses))
    return figure


def _scale(points: Sequence[LossPoint]) -> dict[str, Any]:
    """Logarithmic, one tick a decade, where the curve would otherwise be a cliff and a flat line."""
    lowest, highest = min(map(_loss, points)), max(map(_loss, points))
    steep = lowest > 0 and highest / lowest > LOG_RATIO
    return {"type": "log", "dtick": 1, "tickformat": "~g"} if steep else {}


def _first_and_again(
    points: Sequence[LossPoint],
) -> tuple[list[LossPoint | None], list[LossPoint | None]]:
    """Split in the order of work; None breaks the line between two stretches of redone steps."""
    first: list[LossPoint | None] = []
    again: list[LossPoint | None] = []
    highest: int | None = None
    for point in points:
        if highest is None or point.step > highest:
            first.append(point)
            highest = point.step
            continue
        last = again[-1] if again else None
        if last is not None and point.step <= last.step:
            again.append(None)
        again.append(point)
    return _thin(first), _thin(again)


def _thin(points: list[LossPoint | None]) -> list[LossPoint | None]:
    if len(points) <= MAX_POINTS:
        return points
    size = -(-2 * len(points) // MAX_POINTS)
    kept: list[LossPoint | None] = []
    for at in range(0, len(points), size):
        bucket = [p for p in points[at : at + size] if p is not None]
        if bucket:
            low, high = min(bucket, key=_loss), max(bucket, key=_loss)
            kept += [p for p in bucket if p is low or p is high]
    return kept


def _loss(point: LossPoint) -> float:
    return point.loss


def _step_of(report: Report, cost: IncidentCost) -> int | None:
    if cost.incident.step is not None:
        return cost.incident.step
    before = [s.to_step for s in report.ledger.timeline.segments if s.end <= cost.incident.detected]
    return max(before, default=None)


def _loss_at(points: Sequence[LossPoint], step: int) -> float:
    return min(points, key=lambda p: abs(p.step - step)).loss


def _hover(report: Report, cost: IncidentCost) -> str:
    """The story of an incident in lines that fit a hover box; plotly reads a little HTML, hence escaped."""
    sentences = words.story(cost, report.ledger.timeline.start).split(". ")
    return "<br>".join(html.escape(s.rstrip(".")) for s in sentences)


def _time_chart(report: Report) -> Any:
    """Workers over time with one colour an attempt, what the time was used for below, faults on both."""
    book, start = report.ledger, report.ledger.timeline.start
    figure = go.Figure()
    for attempt in book.timeline.attempts:
        xs, ys = [], []
        for generation in attempt.generations:
            xs += [generation.start - start, generation.end - start]
            ys += [generation.world_size, generation.world_size]
        if not xs and attempt.running is not None:
            until = book.timeline.end if attempt.ended is None else attempt.ended
            xs, ys = [attempt.running - start, until - start], [1, 1]
        if xs:
            figure.add_scatter(
                x=[xs[0], *xs, xs[-1]],
                y=[0, *ys, 0],
                mode="lines",
                line={"width": 1.5},
                fill="tozeroy",
                name=f"attempt {attempt.number}",
                hovertemplate=f"attempt {attempt.number}: %{{y}} workers<extra></extra>",
            )
    _add_strip(figure, report)
    if book.incidents:
        figure.add_scatter(
            x=[c.incident.fault_time - start for c in book.incidents],
            y=[0.0] * len(book.incidents),
            mode="markers",
            name="incident",
            marker={"symbol": "triangle-up", "size": 12, "color": FAULT},
            text=[_hover(report, c) for c in book.incidents],
            hovertemplate="%{text}<extra></extra>",
        )
    most = max((g.world_size for a in book.timeline.attempts for g in a.generations), default=1)
    figure.update_yaxes(dtick=max(1, most // 4))
    figure.update_layout(
        height=330,
        margin={"l": 60, "r": 20, "t": 40, "b": 45},
        barmode="overlay",
        yaxis={
            "domain": [0.34, 1],
            "title": "workers",
            "range": [-0.18 * most, most * 1.15],
            "dtick": max(1, most // 4),
        },
        yaxis2={"domain": [0, 0.2], "showticklabels": False, "showgrid": False, "fixedrange": True},
        xaxis={"title": "seconds since the start", "anchor": "y2", "range": [0, book.total_seconds]},
    )
    return figure


def _add_strip(figure: Any, report: Report) -> None:
    start = report.ledger.timeline.start
    slices = sorted(report.ledger.slices, key=lambda s: -s.seconds)[:MAX_SLICES]
    for category in words.LABELS:
        own = [s for s in slices if s.category is category]
        if own:
            figure.add_bar(
                x=[s.seconds for s in own],
                base=[s.start - start for s in own],
                y=["use"] * len(own),
                yaxis="y2",
                orientation="h",
                width=0.9,
                marker={"color": words.COLOURS[category], "line": {"width": 0}},
                showlegend=False,
                text=[words.seconds_text(s.seconds) for s in own],
                textposition="none",
                hovertemplate=f"{words.LABELS[category]}: %{{text}}<extra></extra>",
            )


def _share_chart(report: Report) -> Any:
    book = report.ledger
    figure = go.Figure()
    for category, label in words.LABELS.items():
        seconds = book.seconds[category]
        if seconds > 0:
            share = seconds / book.total_seconds
            figure.add_bar(
                x=[share],
                y=["run"],
                orientation="h",
                marker={"color": words.COLOURS[category], "line": {"width": 0}},
                name=label,
                text=words.percent(share) if share > 0.05 else "",
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate=f"{label}: {words.seconds_text(seconds)}, %{{x:.1%}}<extra></extra>",
            )
    figure.update_layout(
        barmode="stack",
        height=92,
        showlegend=False,
        margin={"l": 0, "r": 0, "t": 8, "b": 24},
        xaxis={"tickformat": ".0%", "range": [0, 1]},
        yaxis={"visible": False},
    )
    return figure
