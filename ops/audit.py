"""Reads the events of runs and lists what automation did about them: the use case behind `steadyray audit`.

Changes nothing. A run that cannot be read is told as a problem and hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from steadyray import contract

from ops import records
from ops.errors import StoreError, UsageError
from ops.policy.audit import Entry, counts, entries
from ops.policy.events import number
from ops.report import Reader, read_events


def audit(runs: Iterable[tuple[str, Callable[[], Reader]]], since: float) -> dict[str, Any]:
    """Incidents from `since` on (wall clock seconds), newest first, and how many there were of each kind."""
    found: list[Entry] = []
    problems: list[str] = []
    for run, opened in runs:
        own: list[str] = []
        try:
            reader = opened()
            if not _ended_before(reader, since):
                found += entries(run, read_events(reader, own))
        except (StoreError, UsageError) as error:
            own.append(str(error))
        problems += [f"{run}: {problem}" for problem in own]
    shown = sorted((e for e in found if e.time >= since), key=lambda e: e.time, reverse=True)
    return {
        "since": since,
        "incidents": [asdict(entry) for entry in shown],
        "counts": counts(shown),
        "withheld": sum(entry.withheld for entry in shown),
        "problems": problems,
    }


def _ended_before(reader: Reader, since: float) -> bool:
    """From the result alone, so that runs of last year cost one read each."""
    time = number(records.decoded(reader.get(contract.RESULT) or b"") or {}, "time")
    return time is not None and time < since
