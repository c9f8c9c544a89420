"""The fleet's breaker: too many automated acts within a short time are more likely our fault than the runs'.

Pure: `ops.fleet` reads the marks that acts leave, asks here, and does what is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SKEW_SECONDS = 60.0
"""Two machines' clocks may differ by so much; a mark that is further ahead is taken to be written now."""
KEPT_WINDOWS = 12
"""Marks are kept for longer than they count, so that one machine whose clock runs ahead by an hour does not
take away what the others still count."""


@dataclass(frozen=True, slots=True)
class Limits:
    """More than `acts` marks within `window_seconds` open the breaker."""

    acts: int = 20
    window_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Mark:
    """One automated act; `time` is wall clock seconds by its own record, None where that cannot be read."""

    path: str
    time: float | None


@dataclass(frozen=True, slots=True)
class Count:
    """What the marks come to."""

    acts: int
    opens: bool
    message: str
    old: tuple[str, ...] = ()
    """To be removed."""
    adrift: tuple[str, ...] = ()
    """Of the future or unreadable: counted as now, and to be written anew as of now, so that they age."""


def count(marks: Iterable[Mark], now: float, limits: Limits) -> Count:
    """Never raises; a clock that jumped makes the breaker count a little more or less, nothing worse."""
    acts, old, adrift = 0, [], []
    for mark in marks:
        age = -SKEW_SECONDS - 1 if mark.time is None else now - mark.time
        if age > limits.window_seconds * KEPT_WINDOWS:
            old.append(mark.path)
        elif age < -SKEW_SECONDS:
            adrift.append(mark.path)
        acts += age <= limits.window_seconds
    minutes = limits.window_seconds / 60
    text = f"{acts} automated acts in {minutes:g} minutes over all runs, at most {limits.acts} are allowed"
    return Count(acts, acts > limits.acts, text, tuple(old), tuple(adrift))
