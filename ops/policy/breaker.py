"""The fleet's breaker: too many automated acts within a short time are more likely our fault than the runs'.

Pure: `ops.fleet` lists the marks that acts leave, asks here, and does what is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SKEW_SECONDS = 60.0
"""Two machines' clocks may differ by so much. A mark that is further ahead, by a clock that is wrong there or
here, does not count: an open breaker stops everybody, so that no single clock may open it."""
KEPT_WINDOWS = 12
"""Marks are kept for longer than they count, so that one machine whose clock runs ahead by an hour does not
take away what the others still count."""


@dataclass(frozen=True, slots=True)
class Limits:
    """More than `acts` attempts that were acted on within `window_seconds` open the breaker."""

    acts: int = 20
    window_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Mark:
    """An automated act on `attempt`, a submission id; `time` is wall clock in seconds."""

    path: str
    attempt: str
    time: float


@dataclass(frozen=True, slots=True)
class Count:
    """What the marks come to. What is done about one loss (a cluster, then an attempt) counts once."""

    attempts: frozenset[str]
    opens: bool
    message: str
    old: tuple[str, ...] = ()
    """To be removed."""

    @property
    def acts(self) -> int:
        return len(self.attempts)


def count(marks: Iterable[Mark], now: float, limits: Limits) -> Count:
    """Never raises; a clock that jumped makes the breaker count less for a while, nothing worse."""
    counted, old = set(), []
    for mark in marks:
        age = now - mark.time
        if age > limits.window_seconds * KEPT_WINDOWS:
            old.append(mark.path)
        elif -SKEW_SECONDS <= age <= limits.window_seconds:
            counted.add(mark.attempt)
    minutes = limits.window_seconds / 60
    text = (
        f"automated acts on {len(counted)} attempts in {minutes:g} minutes over all runs, "
        f"at most {limits.acts} are allowed"
    )
    return Count(frozenset(counted), len(counted) > limits.acts, text, tuple(old))
