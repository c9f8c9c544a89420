"""Times in which the cluster did not answer and the job lived on: noted once they are over, for the report.

Nothing is done about them while they last (unknown is not unhealthy), so no claim and no incident tells that
the head was lost and came back. Called by `ops.supervise` at each look.
"""

from __future__ import annotations

from dataclasses import dataclass

from steadyray.contract import EventKind

from ops.errors import ClusterError
from ops.gather import Gatherer
from ops.policy.model import Api, JobStatus, RunView

SHORTEST_SECONDS = 5.0
"""Where the head is still the same; a single answer that was late is not worth a person's attention."""

SLOW_SECONDS = 2.5
"""Looks are a second apart at most; one that came so late may have met a head that was being replaced."""
SETTLE_SECONDS = 10.0
"""So long after a silence the node of a new head is waited for."""


@dataclass
class _Outage:
    attempt: int
    step: int
    began: float
    began_monotonic: float


class Outages:
    """Those of one run, as one supervisor sees them."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._gatherer = gatherer
        self._clock = gatherer.clock
        self._heads: frozenset[str] = frozenset()
        self._answered: _Outage | None = None
        """The last look that was answered: the cluster fell silent at some moment after it."""
        self._silent = False
        self._slow = False
        """A short silence hides in one look, whose requests are tried again until they are answered."""
        self._back: float | None = None
        """When it answered again."""

    def look(self, view: RunView) -> None:
        if view.finished or view.api is not Api.ANSWERS:
            self._silent, self._back = self._answered is not None, None
            return
        if self._answered is not None:
            since = self._clock.monotonic() - self._answered.began_monotonic
            self._slow = self._slow or since > SLOW_SECONDS
        if (self._silent or self._slow or not self._heads) and not self._settle(view):
            return
        step = view.progress.step if view.progress else 0
        self._answered = _Outage(view.attempt, step, self._clock.now(), self._clock.monotonic())

    def _settle(self, view: RunView) -> bool:
        """Whether it is known which head answers now: its node is listed later than it answers."""
        now = self._clock.monotonic()
        self._back = now if self._back is None else self._back
        heads = self._head_nodes()
        replaced = bool(self._heads and heads - self._heads)
        over = view.job is not None and view.job.status.ended
        if (self._silent or self._slow) and not replaced and not over and now - self._back < SETTLE_SECONDS:
            return False
        self._note(view, replaced, self._back)
        self._heads, self._silent, self._back = heads or self._heads, False, None
        self._slow = False
        return True

    def _head_nodes(self) -> frozenset[str]:
        """Ray's ids of head nodes: another one for each start; the one before is listed for a while too."""
        try:
            return frozenset(n.id for n in self._gatherer.client().nodes() if n.is_head and n.alive)
        except ClusterError:
            return frozenset()

    def _note(self, view: RunView, replaced: bool, back: float) -> None:
        """An attempt that failed meanwhile has an incident of its own."""
        last = self._answered
        if not (self._silent or (self._slow and replaced)) or last is None or last.attempt != view.attempt:
            return
        if view.job is None or (view.job.status.ended and view.job.status is not JobStatus.SUCCEEDED):
            return
        lasted = back - last.began_monotonic
        if not replaced and lasted < SHORTEST_SECONDS:
            return
        step = view.progress.step if view.progress else last.step
        self._gatherer.record.own_event(
            EventKind.CLUSTER_SILENT,
            view.attempt,
            start=last.began,
            end=last.began + lasted,
            head_replaced=replaced,
            from_step=last.step,
            to_step=max(step, last.step),
        )
