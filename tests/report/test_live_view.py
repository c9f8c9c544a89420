"""The live view: plain lines where there is no terminal, a picture in place where there is one."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from rich.console import Console
from steadyray.contract import Progress

from ops.cli.live import LiveView, eta_seconds
from ops.policy.model import Incident, RunSnapshot, RunState

PROGRESS = Progress(
    step=120, total_steps=300, loss=0.5, samples_per_second=1234.0, world_size=3, spares=1, step_seconds=0.1
)
RUNNING = RunSnapshot("digits", RunState.RUNNING, 1, PROGRESS, started=1000.0, cluster="local")
LOST = Incident("s0001-1", 1, "DriverLost", "The driver's node is gone.", "Resubmit", 1065.0)


@dataclass
class Watch:
    """A clock that is set by hand."""

    time: float = 0.0

    def __call__(self) -> float:
        return self.time


class Shown:
    """A view that writes into memory."""

    def __init__(self, *, terminal: bool = False, no_color: bool = False, width: int = 100) -> None:
        self.file, self.watch = io.StringIO(), Watch()
        console = Console(file=self.file, force_terminal=terminal, no_color=no_color, width=width)
        self.view = LiveView("digits", console=console, now=lambda: 1070.0, monotonic=self.watch)

    def at(self, time: float, snapshot: RunSnapshot) -> None:
        self.watch.time = time
        self.view.update(snapshot)

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def step(number: int) -> RunSnapshot:
    return replace(RUNNING, progress=replace(PROGRESS, step=number))


def test_without_a_terminal_progress_comes_in_plain_lines() -> None:
    shown = Shown()
    with shown.view:
        shown.at(0, RUNNING)
        shown.at(5, step(121))
    assert shown.lines == [
        "digits: Running, attempt 1",
        "digits: Running, attempt 1: step 121/300, loss 0.5, 1,234 samples/s, 18 s left, 3 workers + 1 spare",
    ]


def test_a_picture_that_is_old_says_so() -> None:
    shown = Shown(terminal=True)
    with shown.view:
        shown.at(0, RUNNING)
        assert "no answer" not in shown.file.getvalue()
        shown.watch.time = 9.0
        assert shown.view._screen is not None
        shown.view._screen.refresh()
        assert "no answer for 9 s; still asking" in shown.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_figures_that_are_no_numbers_are_shown_as_far_as_they_make_sense(terminal: bool) -> None:
    """Any script may write the file, and an older one of ours kept a total as text."""
    odd = Progress.from_json(
        {"step": "7", "total_steps": "9", "loss": "low", "step_seconds": [], "time": None}
    )
    assert (odd.step, odd.total_steps, odd.loss, odd.step_seconds) == (7, 9, None, None)
    shown = Shown(terminal=terminal)
    with shown.view:
        shown.at(0, replace(RUNNING, progress=odd))
        shown.at(9, replace(RUNNING, progress=replace(odd, step=8)))
    assert "step 8/9" in shown.file.getvalue()


def test_what_is_waited_for_is_said_once() -> None:
    why = "1 of at least 2 workers are ready. A node of group cpu did not start: no memory."
    waiting = replace(
        RUNNING, state=RunState.WAITING, waiting=why, message=why,
        progress=replace(PROGRESS, message="1 of at least 2 workers are ready"),
    )  # fmt: skip
    for terminal in (True, False):
        shown = Shown(terminal=terminal, width=200)
        with shown.view:
            shown.at(0, waiting)
        last = shown.file.getvalue().rpartition("digits")[2]
        assert last.count("of at least 2 workers are ready") == 1


def test_nothing_is_written_while_nothing_changes() -> None:
    shown = Shown()
    with shown.view:
        for second in range(100):
            shown.at(second, RUNNING)
    assert len(shown.lines) == 2


def test_two_plain_lines_are_never_less_than_a_second_apart_and_no_news_is_lost() -> None:
    shown = Shown()
    written: list[tuple[float, int]] = []
    with shown.view:
        for tick in range(40):
            incidents = tuple(replace(LOST, id=f"s{k}", message=f"fault {k}") for k in range(min(tick, 5)))
            shown.at(tick * 0.25, replace(step(tick), incidents=incidents))
            if not written or len(shown.lines) > written[-1][1]:
                written.append((tick * 0.25, len(shown.lines)))
    assert all(b[0] - a[0] >= 1 and b[1] - a[1] == 1 for a, b in pairwise(written))
    assert [k for k in range(5) if any(f"fault {k}" in line for line in shown.lines)] == [0, 1, 2, 3, 4]


def test_an_incident_is_told_with_what_is_done_about_it() -> None:
    shown = Shown()
    with shown.view:
        shown.at(0, replace(RUNNING, incidents=(LOST,)))
    assert "digits: 1:05  DriverLost: The driver's node is gone -> Resubmit" in shown.lines


def test_what_the_driver_says_in_passing_is_told_once() -> None:
    shown = Shown()
    word = replace(RUNNING, progress=replace(PROGRESS, message="rank 1 died; a spare takes over"))
    with shown.view:
        for second in range(4):
            shown.at(second, word)
    assert sum("rank 1 died" in line for line in shown.lines) == 1


def test_what_waits_is_written_when_the_view_is_left() -> None:
    shown = Shown()
    with shown.view:
        shown.at(0, RUNNING)
        shown.at(0.1, replace(RUNNING, state=RunState.SUCCEEDED))
    assert shown.lines[-1] == "digits: Succeeded, attempt 1"


def test_a_wait_is_told_with_its_reason() -> None:
    shown = Shown()
    with shown.view:
        shown.at(0, RunSnapshot("digits", RunState.WAITING, 1, waiting="2 more CPUs are needed"))
    assert shown.lines == ["digits: Waiting, attempt 1, 2 more CPUs are needed"]


def test_a_script_without_progress_shows_its_last_log_line() -> None:
    shown = Shown()
    with shown.view:
        shown.at(0, RunSnapshot("digits", RunState.RUNNING, 1, log_line="epoch 3 done"))
        shown.at(5, RunSnapshot("digits", RunState.RUNNING, 1, log_line="epoch 4 done"))
    assert shown.lines[-1] == "digits: Running, attempt 1: epoch 4 done"


def test_a_terminal_shows_step_loss_speed_workers_attempt_and_news_in_place() -> None:
    shown = Shown(terminal=True)
    with shown.view:
        shown.at(0, replace(RUNNING, incidents=(LOST,)))
    picture = shown.file.getvalue()
    for part in (
        "120/300",
        "loss 0.5",
        "1,234 samples/s",
        "3 workers + 1 spare",
        "attempt 1",
        "18 s left",
        "DriverLost",
    ):
        assert part in picture
    assert "\x1b[?25h" in picture, "the cursor has to come back"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    view = LiveView("digits", console=Console(file=file, force_terminal=True, width=100))
    with view:
        view.update(RUNNING)
    assert "\x1b[32m" not in file.getvalue()
    assert "\x1b[1;32m" not in file.getvalue()


@pytest.mark.parametrize(
    ("snapshot", "eta"),
    [
        (RUNNING, pytest.approx(18.0)),
        (step(300), 0),
        (replace(RUNNING, state=RunState.RECOVERING), None),
        (replace(RUNNING, progress=replace(PROGRESS, total_steps=None)), None),
        (replace(RUNNING, progress=None), None),
    ],
)
def test_time_left_is_steps_left_times_the_median_step(snapshot: RunSnapshot, eta: float | None) -> None:
    assert eta_seconds(snapshot) == eta
