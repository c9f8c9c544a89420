"""The fleet's breaker over all runs of a runs folder: marks, the open breaker, and how a person closes it.

    <runs>/_fleet/acts/<attempt>@<time>  left before each automated act (exclusive create)
    <runs>/_fleet/breaker.json           while it is there, the breaker is open
    <runs>/_fleet/closings/<time>.json   who closed it, and why
    <runs>/_fleet/limits.json            how much is allowed, where a person has said so

Called by `ops.restraints` before an act and by `steadyray fleet`. Methods raise StoreError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from ops import records
from ops.policy import breaker
from ops.policy.breaker import Limits, Mark
from ops.policy.events import number, text
from ops.ports import Clock, RunStore
from ops.record import Recorder

FOLDER = "_fleet"
BREAKER = "breaker.json"
LIMITS = "limits.json"
ACTS = "acts"
_MARK = re.compile(rf"{ACTS}/(.+)@(\d{{1,15}})\.json")
"""Attempt and milliseconds: marks are counted by their names alone, as an act waits for the count."""
_LIMITS = TypeAdapter(Limits)


@dataclass(frozen=True, slots=True)
class Open:
    """An open breaker, as far as its record can be read."""

    why: str
    time: float | None = None
    who: str = ""
    run: str = ""


@dataclass
class Fleet:
    """`open` gives the store of the fleet's folder, which need not be there before something is written."""

    open: Callable[[], RunStore]
    clock: Clock
    close_command: str = "steadyray fleet close"

    def opened(self) -> Open | None:
        """What is known of an open breaker; None while it is closed."""
        data = self._store.get(BREAKER)
        if data is None:  # that the file is there is enough: a damaged one is an open one
            return None
        told = records.decoded(data) or {}
        why = text(told, "why") or f"{BREAKER} is there and says no reason"
        return Open(why, number(told, "time"), text(told, "who"), text(told, "run"))

    def mark(self, attempt: str, about: Mapping[str, Any]) -> Open | None:
        """Leave the mark of an act that is about to be done. Not None: the breaker is open, do nothing.

        The mark comes before the count, so of acts that are begun at the same time none is overlooked.
        """
        now = self.clock.now()
        if attempt not in self.acts().attempts:
            path = f"{ACTS}/{attempt}@{int(now * 1000)}.json"
            self._record.create(path, {**about, "time": now})
        found = self.acts()
        for path in found.old:
            self._store.delete(path)
        if found.opens and self.acts().opens:  # unless a person has closed it in between
            self.trip(found.message, about)
        return self.opened()

    def trip(self, why: str, about: Mapping[str, Any]) -> bool:
        """Open the breaker; False if it was open."""
        return self._record.create(BREAKER, {**about, "why": why, "time": self.clock.now()})

    def close(self, who: str, why: str) -> Open | None:
        """A person's word that acts may go on; gives what was open. A crash in the middle leaves it open."""
        if (was := self.opened()) is None:
            return None
        now = self.clock.now()
        told = self._record.read(BREAKER) or {}
        closing = {"closed_by": who, "why": why, "time": now, "breaker": told}
        self._record.create(f"closings/{int(now * 1000):015d}.json", closing)
        for path in self._store.list(ACTS):
            self._store.delete(path)
        self._store.delete(BREAKER)
        return was

    def limit(self, limits: Limits) -> None:
        """From now on, for all supervisors of these runs."""
        self._record.put(LIMITS, {"acts": limits.acts, "window_seconds": limits.window_seconds})

    def limits(self) -> Limits:
        found = records.valid(_LIMITS, self._record.read(LIMITS))
        usable = found is not None and found.acts >= 0 and 0 < found.window_seconds < math.inf
        return found if found is not None and usable else Limits()

    def acts(self) -> breaker.Count:
        """The marks of the window; changes nothing."""
        names = (_MARK.fullmatch(path) for path in self._store.list(ACTS))
        marks = [Mark(m[0], m[1], int(m[2]) / 1000) for m in names if m]
        return breaker.count(marks, self.clock.now(), self.limits())

    @property
    def _store(self) -> RunStore:
        return self._record.store

    @property
    def _record(self) -> Recorder:
        if self._kept is None:
            self._kept = Recorder(self.open(), self.clock)
        return self._kept

    _kept: Recorder | None = field(default=None, init=False, repr=False)
