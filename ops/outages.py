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
        self._head = ""
        self._answered: _Outage | None = None
        """The last look that was answered: the cluster fell silent at some moment after it."""
        self._silent = False

    def look(self, view: RunView) -> None:
        if view.finished or view.api is not Api.ANSWERS:
            self._silent = self._answered is not None
            return
        if self._silent or not self._head:
            head, over = self._head_node(), view.job is not None and view.job.status.ended
            if head is None and not over:
                return  # the list of nodes comes back later than the rest
            self._note(view, head or self._head)
            self._head, self._silent = head or self._head, False
        step = view.progress.step if view.progress else 0
        self._answered = _Outage(view.attempt, step, self._clock.now(), self._clock.monotonic())

    def _head_node(self) -> str | None:
        """Ray's id of the head node, which is another one for each start of a head."""
        try:
            heads = [n.id for n in self._gatherer.client().nodes() if n.is_head and n.alive]
        except ClusterError:
            return None
        return heads[0] if heads else None

    def _note(self, view: RunView, head: str) -> None:
        """An attempt that failed meanwhile has an incident of its own."""
        last = self._answered
        if not self._silent or last is None or last.attempt != view.attempt:
            return
        if view.job is None or (view.job.status.ended and view.job.status is not JobStatus.SUCCEEDED):
            return
        lasted = self._clock.monotonic() - last.began_monotonic
        if head == self._head and lasted < SHORTEST_SECONDS:
            return
        step = view.progress.step if view.progress else last.step
        self._gatherer.record.own_event(
            EventKind.CLUSTER_SILENT,
            view.attempt,
            start=last.began,
            end=last.began + lasted,
            head_replaced=head != self._head,
            from_step=last.step,
            to_step=max(step, last.step),
        )
