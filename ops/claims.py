"""Claims: the right to do the k-th act of an incident, and what becomes of one whose owner has gone.

A claim is created before the act, exclusively, and completed after it. The event that tells of the act is
written between the two, before the act itself: an unfinished claim without its event was never acted on.
Called by `ops.supervise`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steadyray import contract

from ops import records
from ops.gather import Gatherer
from ops.policy.model import Action, Decision, PastAction, RunView

TAKE_OVER_SECONDS = {Action.RECREATE_CLUSTER: 240.0}
TAKE_OVER_DEFAULT_SECONDS = 10.0
"""After which another supervisor's unfinished act is continued. All acts are idempotent; making a cluster
takes a minute on two cores, so that one is given longer."""


@dataclass(frozen=True, slots=True)
class Claim:
    incident: str
    k: int
    record: dict[str, Any]

    @property
    def path(self) -> str:
        return contract.action(self.incident, self.k)


class Claims:
    """Those of one run, in the name of one supervisor."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._gatherer = gatherer
        self._record = gatherer.record

    def next(self, view: RunView, decision: Decision, incident: str) -> Claim:
        """What to claim now; nothing is written yet."""
        k = 1 + sum(1 for a in self._gatherer.seen if a.incident == incident and a.completed)
        record = {
            "incident": incident,
            "k": k,
            "attempt": view.attempt,
            "action": decision.action,
            "failure_class": decision.verdict.failure_class if decision.verdict else "",
            "charged": decision.charged,
            "best_step": view.best_step,
            "checkpoint_step": view.checkpoint_step,
            "completed": False,
            "reason": decision.reason,
            "message": decision.verdict.message if decision.verdict else decision.message,
            "time": self._gatherer.clock.now(),
            "supervisor": self._record.id,
        }
        return Claim(incident, k, record)

    def take(self, claim: Claim, decision: Decision) -> Decision | None:
        """None: the act is ours to do. Else what is said instead, for this look."""
        if self._record.create(claim.path, claim.record):
            return None
        there = self._record.read(claim.path) or {}
        act = records.past_action(there)
        if not self._left_over(claim.path, act, there):
            text = f"Another supervisor does it: {decision.message}"
            return Decision(Action.WAIT, "AnotherSupervisor", text, verdict=decision.verdict)
        if act is None:  # a damaged one would stand in the way for ever
            self._record.put(claim.path, claim.record)
        if act is None or act.action == decision.action:
            return None
        self._settle(Claim(claim.incident, claim.k, there))
        text = f"{act.action} was begun and never finished; looks again. {decision.message}"
        return Decision(Action.WAIT, "ActLeftUnfinished", text, verdict=decision.verdict)

    def complete(self, claim: Claim) -> None:
        done = {"completed": True, "completed_time": self._gatherer.clock.now()}
        self._record.put(claim.path, {**claim.record, **done})

    def unfinished(self, view: RunView, action: Action) -> list[Claim]:
        """Claims of `action` on this attempt that nobody has completed yet."""
        begun = [a for a in view.history if _of(a, view, action) and not a.completed]
        found = [(a, self._record.read(contract.action(a.incident, a.k))) for a in begun]
        return [Claim(a.incident, a.k, record) for a, record in found if record]

    def _left_over(self, path: str, act: PastAction | None, there: dict[str, Any]) -> bool:
        """Whether it is ours, or of a supervisor that seems to have gone; not if it is completed."""
        if act is not None and act.completed:
            return False
        if there.get("supervisor") == self._record.id:
            return True
        now = self._gatherer.clock.monotonic()
        watch = self._gatherer.watch = self._gatherer.watch.observe(now, claim=path)
        limit = TAKE_OVER_DEFAULT_SECONDS
        if act is not None:
            limit = TAKE_OVER_SECONDS.get(Action(act.action), limit)
        return watch.age_of("claim", path, now) > limit

    def _settle(self, claim: Claim) -> None:
        """Close a claim whose act is no longer due, so that the due one gets a number of its own.

        Where its event stands it may have been done. A resubmission was not, as the attempt is still the
        old one: it costs nothing.
        """
        resubmits = claim.record["action"] == Action.RESUBMIT
        if resubmits or not self._record.has_act(claim.incident, claim.k):
            claim.record.update(action=Action.NONE, charged=False, failure_class="")
        self.complete(claim)


def asked(view: RunView, action: Action) -> bool:
    """Whether `action` was claimed for this attempt before."""
    return any(_of(a, view, action) for a in view.history)


def _of(act: PastAction, view: RunView, action: Action) -> bool:
    return act.attempt == view.attempt and act.action == action
