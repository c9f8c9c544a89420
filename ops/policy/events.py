"""Reading events that were written by others: damaged fields, and clocks that differ.

Used by `ops.policy.timeline` and by the report; nothing here knows what an event means for a run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from steadyray.contract import Event, EventKind

MAX_SKEW_SECONDS = 10.0
"""Largest difference between two clocks that is taken for skew and corrected.

Hosts under NTP differ by milliseconds, unsynchronised ones by some seconds. A driver that reports later
than that after its attempt was declared ended was cut off and still alive: that is a fact, not skew.
"""


def number(data: Mapping[str, Any], key: str) -> float | None:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's integers have no end
        return None


def integer(data: Mapping[str, Any], key: str) -> int | None:
    value = number(data, key)
    return None if value is None else int(value)


def text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def dicts(data: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    value = data.get(key)
    return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


_TIMES = ("start", "end", "detected", "last_step_time", "first_new_step_time", "fault_time", "since")


def align(events: Sequence[Event]) -> list[Event]:
    """Shift each driver's clock by the least that puts cause before effect.

    A driver writes nothing before its attempt was claimed and nothing after the supervisor saw it end.
    The supervisor's clock is the reference, because RunCreated and RunFinished are taken from it.
    """
    claimed = {e.attempt: e.time for e in reversed(events) if e.kind == EventKind.ATTEMPT_CLAIMED}
    ended: dict[int, float] = {}
    for event in events:
        if event.kind == EventKind.ATTEMPT_ENDED:
            ended[event.attempt] = max(event.time, ended.get(event.attempt, event.time))
    drivers: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.writer.startswith("driver-"):
            drivers[event.writer].append(event)
    shifts = {
        w: _shift(own, claimed.get(own[0].attempt), ended.get(own[0].attempt)) for w, own in drivers.items()
    }
    return [_shifted(event, shifts.get(event.writer, 0.0)) for event in events]


def _shift(own: Sequence[Event], earliest: float | None, latest: float | None) -> float:
    first, last = min(e.time for e in own), max(e.time for e in own)
    forward = 0.0 if earliest is None else earliest - first
    if 0.0 < forward <= MAX_SKEW_SECONDS:
        return forward
    back = 0.0 if latest is None else last - latest
    if 0.0 < back <= MAX_SKEW_SECONDS:
        return max(-back, forward)
    return 0.0


def _shifted(event: Event, shift: float) -> Event:
    if shift == 0.0:
        return event
    moved = {key: value + shift for key in _TIMES if (value := number(event.data, key)) is not None}
    return replace(event, time=event.time + shift, data={**event.data, **moved})
