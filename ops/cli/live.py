"""What a person sees while a run goes on: a few lines in place on a terminal, plain lines elsewhere.

`steadyray job run` opens a `LiveView` and hands it a snapshot after every tick of the supervisor. All of it
goes to stderr: stdout is for data.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ops.output import Screen
from ops.policy.model import FINAL, Incident, RunSnapshot, RunState
from ops.report_words import CLASSES, clock, seconds_text

LINE_SECONDS = 1.0
"""Least time between two plain lines."""

PROGRESS_LINE_SECONDS = 5.0
"""Least time between two plain lines that tell of nothing but progress; logs stay readable."""

SILENT_SECONDS = 3.0
"""Looks are a second apart at most, so that after this one hangs; nobody should take the picture for new."""

SHOWN_NEWS = 4
"""Of what went wrong, as many lines as stay in sight."""

STYLES = {
    RunState.RUNNING: "bold green",
    RunState.SUCCEEDED: "bold green",
    RunState.RECOVERING: "bold yellow",
    RunState.WAITING: "bold yellow",
    RunState.FAILED: "bold red",
    RunState.STOPPED: "bold yellow",
}


class LiveView:
    """Shows snapshots until it is left; `update` belongs to one thread."""

    def __init__(
        self,
        run_name: str,
        *,
        console: Console | None = None,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run_name
        self._console = console or Screen(stderr=True, soft_wrap=False)
        self._now = now
        self._monotonic = monotonic
        self._shown: tuple[RunSnapshot, tuple[str, ...], float] | None = None
        """The newest snapshot, its news and when it came; replaced as a whole, for the other thread."""
        self._screen: Live | None = None
        self._lines = _PlainLines(self._console, monotonic)
        self._news = _News()

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # drawn anew by a thread of its own, since a look at a silent cluster takes its seconds
            self._screen = Live(
                console=self._console, refresh_per_second=4, transient=False, get_renderable=self._draw
            )
            self._screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen:
            with suppress(OSError):  # of a terminal that was closed
                self._screen.stop()
        else:
            self._lines.flush()

    def update(self, snapshot: RunSnapshot) -> None:
        fresh = self._news.take(snapshot, self._now())
        self._shown = (snapshot, tuple(self._news.lines), self._monotonic())
        if self._screen:
            self._screen.refresh()
            return
        for line in fresh:
            self._lines.news(f"{self._run}: {line}")
        self._lines.state(f"{self._run}: {_state_line(snapshot)}", snapshot)
        self._lines.progress(f"{self._run}: {_state_line(snapshot)}{_progress_line(snapshot)}")

    def _draw(self) -> RenderableType:
        try:
            return self._drawn()
        except Exception as error:  # noqa: BLE001  a run must not end because it cannot be shown
            return Text(f"{self._run}: cannot be shown: {type(error).__name__}: {error}", style="yellow")

    def _drawn(self) -> RenderableType:
        if self._shown is None:
            return Text(f"{self._run}: looks at the cluster", style="dim")
        snapshot, news, since = self._shown
        parts = self._picture(snapshot)
        silent = self._monotonic() - since
        if silent >= SILENT_SECONDS and snapshot.state not in FINAL:
            parts.append(Text(f"no answer for {silent:.0f} s; still asking", style="yellow"))
        return Group(*parts, *(Text(f"  {line}", style="yellow") for line in news))

    def _picture(self, snapshot: RunSnapshot) -> list[RenderableType]:
        parts: list[RenderableType] = [self._head(snapshot)]
        if snapshot.progress is not None:
            parts.append(_progress_bar(snapshot))
        elif snapshot.log_line:
            parts.append(Text(snapshot.log_line, style="dim", no_wrap=True, overflow="ellipsis"))
        if snapshot.waiting:
            parts.append(Text(f"waiting: {snapshot.waiting}", style="yellow"))
        elif snapshot.message and snapshot.state is not RunState.RUNNING:
            parts.append(Text(snapshot.message, style="dim"))
        return parts

    def _head(self, snapshot: RunSnapshot) -> Text:
        head = Text.assemble(
            (self._run, "bold"), "  ", (snapshot.state.value, STYLES.get(snapshot.state, "bold blue"))
        )
        age = clock(self._now() - snapshot.started) if snapshot.started else ""
        cluster = f"cluster {snapshot.cluster}" if snapshot.cluster else ""
        for part in (_attempt(snapshot), _workers(snapshot), cluster, age):
            if part:
                head.append(f"  ·  {part}", style="dim")
        return head


class _News:
    """What went wrong: incidents of the supervisor, and what the driver says in passing about its own."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=SHOWN_NEWS)
        self._known: dict[str, str] = {}
        self._last_word = ""

    def take(self, snapshot: RunSnapshot, now: float) -> list[str]:
        """Lines that were not known before."""
        fresh = []
        for incident in snapshot.incidents:
            line = _incident_line(incident, snapshot.started)
            if self._known.get(incident.id) != line:
                fresh.append(line)
            self._known[incident.id] = line
        word = snapshot.progress.message if snapshot.progress else ""
        if word and word != self._last_word and word.rstrip(".") not in snapshot.waiting:
            at = f"{clock(now - snapshot.started)}  " if snapshot.started else ""
            fresh.append(f"{at}{word}")
        self._last_word = word
        self.lines.extend(fresh)
        return fresh


class _PlainLines:
    """Writes a line only when something changed, and never two within a second.

    News waits in a queue for its turn, so that none is lost; of states and progress only the newest counts.
    """

    def __init__(self, console: Console, monotonic: Callable[[], float]) -> None:
        self._console = console
        self._monotonic = monotonic
        self._queue: deque[str] = deque()
        self._written = float("-inf")
        self._state: object = None
        self._last = ""

    def news(self, line: str) -> None:
        self._queue.append(line)

    def state(self, line: str, snapshot: RunSnapshot) -> None:
        state = (snapshot.state, snapshot.attempt, snapshot.waiting)
        if state != self._state:
            self._state = state
            self._queue.append(line)

    def progress(self, line: str) -> None:
        """Write what waits, or else this line, if it is time."""
        silent = self._monotonic() - self._written
        if self._queue and silent >= LINE_SECONDS:
            self._write(self._queue.popleft())
        elif not self._queue and silent >= PROGRESS_LINE_SECONDS and line != self._last:
            self._write(line)

    def flush(self) -> None:
        while self._queue:
            self._write(self._queue.popleft())

    def _write(self, line: str) -> None:
        self._written, self._last = self._monotonic(), line
        self._console.print(Text(line), soft_wrap=True)


# --- words -------------------------------------------------------------------------------------------
def _incident_line(incident: Incident, started: float) -> str:
    at = f"{clock(incident.time - started)}  " if incident.time and started else ""
    what = incident.message or CLASSES.get(incident.failure_class, "")
    action = f" -> {incident.action}" if incident.action else ""
    return f"{at}{incident.failure_class}: {what.rstrip('.')}{action}"


def _attempt(snapshot: RunSnapshot) -> str:
    return f"attempt {snapshot.attempt}" if snapshot.attempt else ""


def _workers(snapshot: RunSnapshot) -> str:
    progress = snapshot.progress
    if progress is None:
        return ""
    spares = f" + {progress.spares} spare" if progress.spares else ""
    return f"{progress.world_size} worker{'' if progress.world_size == 1 else 's'}{spares}"


def _figures(snapshot: RunSnapshot) -> list[str]:
    progress = snapshot.progress
    if progress is None:
        return []
    total = f"/{progress.total_steps}" if progress.total_steps else ""
    figures = [f"step {progress.step}{total}"]
    if progress.loss is not None:
        figures.append(f"loss {progress.loss:.4g}")
    if progress.samples_per_second:
        figures.append(f"{progress.samples_per_second:,.0f} samples/s")
    if progress.phase and progress.phase != "train":
        figures.append(f"in {progress.phase}")
    left = eta_seconds(snapshot)
    if left:
        figures.append(f"{seconds_text(left)} left")
    return figures


def eta_seconds(snapshot: RunSnapshot) -> float | None:
    """Steps left times the median step; None where either is unknown or the run does not go on."""
    progress = snapshot.progress
    if progress is None or snapshot.state is not RunState.RUNNING:
        return None
    if not progress.total_steps or not progress.step_seconds:
        return None
    return max(0, progress.total_steps - progress.step) * progress.step_seconds


def _progress_bar(snapshot: RunSnapshot) -> Table:
    progress = snapshot.progress
    row = Table.grid(padding=(0, 1))
    cells: list[RenderableType] = []
    if progress is not None and progress.total_steps:
        cells.append(ProgressBar(total=progress.total_steps, completed=progress.step, width=30))
    cells.append(Text("   ".join(_figures(snapshot))))
    row.add_row(*cells)
    return row


def _state_line(snapshot: RunSnapshot) -> str:
    """State, attempt and, unless all is well, why."""
    why = "" if snapshot.state is RunState.RUNNING else snapshot.waiting or snapshot.message
    parts = [snapshot.state.value, _attempt(snapshot), why.rstrip(".")]
    return ", ".join(part for part in parts if part)


def _progress_line(snapshot: RunSnapshot) -> str:
    figures = [*_figures(snapshot), _workers(snapshot)]
    if snapshot.progress is None:
        return f": {snapshot.log_line}" if snapshot.log_line else ""
    return ": " + ", ".join(part for part in figures if part)
