"""The fleet's breaker over all runs of a runs folder: marks, the open breaker, and how a person closes it.

    <runs>/_fleet/acts/<act>.json       left before each automated act (exclusive create)
    <runs>/_fleet/breaker.json          while it is there, the breaker is open
    <runs>/_fleet/closings/<time>.json  who closed it, and why

Called by `ops.restraints` before an act and by `steadyray fleet`. Methods raise StoreError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ops.policy import breaker
from ops.policy.breaker import Limits, Mark
from ops.ports import Clock, RunStore
from ops.record import Recorder

FOLDER = "_fleet"
BREAKER = "breaker.json"
ACTS = "acts"


@dataclass
class Fleet:
    """`open` gives the store of the fleet's folder; anew each time, since a person may have removed it."""

    open: Callable[[], RunStore]
    clock: Clock
    close_command: str = "steadyray fleet close"
    limits: Limits = field(default_factory=Limits)

    def opened(self) -> dict[str, Any] | None:
        """What is known of an open breaker; None while it is closed."""
        return self._open_breaker(self._record())

    def mark(self, name: str, about: Mapping[str, Any]) -> dict[str, Any] | None:
        """Leave the mark of an act that is about to be done. Not None: the breaker is open, do nothing.

        The mark comes before the count, so of acts that are begun at the same time none is overlooked.
        """
        record, now = self._record(), self.clock.now()
        path = f"{ACTS}/{name}.json"
        mark = {**about, "time": now}
        if not record.create(path, mark) and not self._counts(record, path, now):
            record.put(path, mark)
        found = self._count(record, now)
        if found.opens:
            self.trip(found.message, about)
        return self._open_breaker(record)

    def trip(self, why: str, about: Mapping[str, Any]) -> bool:
        """Open the breaker; False if it was open."""
        return self._record().create(BREAKER, {**about, "why": why, "time": self.clock.now()})

    def close(self, who: str, why: str) -> dict[str, Any] | None:
        """A person's word that acts may go on; gives what was open. A crash in the middle leaves it open."""
        record = self._record()
        if (was := self._open_breaker(record)) is None:
            return None
        now = self.clock.now()
        closing = {"closed_by": who, "why": why, "time": now, "breaker": was}
        record.create(f"closings/{int(now * 1000):015d}.json", closing)
        for path in record.store.list(ACTS):
            record.store.delete(path)
        record.store.delete(BREAKER)
        return was

    def acts(self) -> breaker.Count:
        """The marks of the window; changes nothing."""
        return breaker.count(self._marks(self._record()), self.clock.now(), self.limits)

    def _record(self) -> Recorder:
        return Recorder(self.open(), self.clock)

    def _open_breaker(self, record: Recorder) -> dict[str, Any] | None:
        """That the file is there is enough: a damaged one is an open one."""
        if record.store.get(BREAKER) is None:
            return None
        return record.read(BREAKER) or {"why": f"{BREAKER} is there and cannot be read"}

    def _counts(self, record: Recorder, path: str, now: float) -> bool:
        """Whether the mark of an act that was begun earlier still stands within the window."""
        time = _time(record.read(path))
        return time is not None and now - time <= self.limits.window_seconds

    def _count(self, record: Recorder, now: float) -> breaker.Count:
        found = breaker.count(self._marks(record), now, self.limits)
        for path in found.old:
            record.store.delete(path)
        for path in found.adrift:
            record.put(path, {**(record.read(path) or {}), "time": now})
        return found

    def _marks(self, record: Recorder) -> list[Mark]:
        return [Mark(path, _time(record.read(path))) for path in record.store.list(ACTS)]


def _time(mark: Mapping[str, Any] | None) -> float | None:
    time = mark.get("time") if mark else None
    known = isinstance(time, int | float) and not isinstance(time, bool) and math.isfinite(time)
    return float(time) if known and time is not None else None
