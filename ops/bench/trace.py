"""What the lines of a training say about a recovery. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

IN_FLIGHT_SECONDS = 0.05
"""A step's length: rank 0 may still finish the step in which another rank was hit, which is no recovery."""

Mark = tuple[float, int]
"""When rank 0 finished a step (wall clock seconds), and its number counted from 1."""


@dataclass(frozen=True)
class Recovery:
    """`seconds` from the fault to the first step that had not been done before it."""

    seconds: float
    steps_redone: int


def parse(text: str) -> list[Mark]:
    """Lines `time step`; a last line that is not whole yet is left out."""
    whole = text[: text.rfind("\n") + 1]
    return [(float(time), int(step)) for time, step in (line.split() for line in whole.splitlines())]


def recovery(marks: Sequence[Mark], fault: float, restarted: float = 0.0) -> Recovery | None:
    """None as long as no new step is done. Steps before `restarted` are still those of who was lost."""
    begin = max(fault + IN_FLIGHT_SECONDS, restarted)
    highest = max((step for time, step in marks if time <= begin), default=0)
    redone = 0
    for time, step in marks:
        if time <= begin:
            continue
        if step > highest:
            return Recovery(time - fault, redone)
        redone += 1
    return None


def standstill(marks: Sequence[Mark], fault: float, until: float) -> Recovery:
    """For a fault that need not stop the training: its longest pause between two new steps, in seconds."""
    best, redone, new = 0, 0, []
    for time, step in marks:
        if step > best:
            best = step
            new.append(time)
        elif fault < time <= until:
            redone += 1
    times = [time for time in new if time <= until]
    before = max((time for time in times if time <= fault), default=fault)
    after = [time for time in times if time > fault]
    return Recovery(max(b - a for a, b in pairwise([before, *after, until])), redone)
