"""What the supervisor writes down about a run, besides claims: evidence, incidents, attempts, the end.

Every note has a fixed place and is created once, so that it may be written again by whoever continues the
work of a killed supervisor. Called by `ops.supervise` around its acts.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from steadyray import contract
from steadyray.contract import EventKind

from ops.errors import ClusterError
from ops.gather import Gatherer
from ops.policy import by_hand
from ops.policy.events import MAX_SKEW_SECONDS
from ops.policy.model import Action, Decision, RunView, Verdict

K = EventKind

MOST_FACTS = 5
"""Of the evidence, in an event about an act; the incident has all of it."""


class Notes:
    """Notes of one run, in the name of one supervisor."""

    def __init__(self, gatherer: Gatherer) -> None:
        self.gatherer = gatherer
        self.record = gatherer.record
        self._waited: tuple[int, str] = (0, "")

    def save_evidence(self, view: RunView, decision: Decision, incident: str) -> None:
        """Before any resubmission or clean-up: afterwards the cluster may not have it any more."""
        verdict = decision.verdict
        if verdict is None:
            return
        files: dict[str, dict[str, Any]] = {"verdict.json": asdict(verdict)}
        if view.job:
            files["job.json"] = asdict(view.job)
        if view.progress:
            files["progress.json"] = view.progress.to_json()
        if nodes := self._nodes():
            files["nodes.json"] = {"nodes": nodes}
        paths = [contract.evidence(view.attempt, name) for name in files]
        for path, content in zip(paths, files.values(), strict=True):
            self.record.put(path, content)
        if self.gatherer.log:
            paths.append(contract.evidence(view.attempt, "driver.log"))
            self.record.store.put(paths[-1], self.gatherer.log.encode())
        self.record.incident_event(
            K.INCIDENT_OPENED,
            view.attempt,
            incident,
            failure_class=verdict.failure_class,
            rule=verdict.rule,
            message=verdict.message,
            confidence=verdict.confidence,
            culprit=asdict(verdict.culprit),
            evidence=_facts(verdict),
            step=view.best_step,
            fault_time=self._fault_time(view),
        )
        self.record.incident_event(K.EVIDENCE_SAVED, view.attempt, incident, files=paths)

    def _fault_time(self, view: RunView) -> float:
        """When the job was last known to live; only the ledger reads it, no decision rests on it.

        We see a change at our next look; the record itself says when it was written, by the driver's clock.
        """
        silent = view.progress_age if view.progress else view.incident_age
        seen = self.gatherer.clock.now() - max(0.0, min(silent, view.run_seconds))
        written = view.progress.time if view.progress else seen
        return written if 0.0 <= seen - written <= MAX_SKEW_SECONDS else seen

    def _nodes(self) -> list[dict[str, Any]]:
        try:
            return [asdict(n) for n in self.gatherer.client().nodes()]
        except ClusterError:
            return []

    def who(self) -> dict[str, str]:
        return {"who": self.record.id, "host": self.record.host}

    def _told(self, decision: Decision) -> dict[str, Any]:
        """What every event about a decision says of it: what, why, by whose rule, on what evidence."""
        verdict = decision.verdict
        return {
            **self.who(),
            "action": "Stop" if decision.action is Action.FINISH else decision.action,
            "reason": decision.reason,
            "message": decision.message,
            "failure_class": verdict.failure_class if verdict else "",
            "rule": verdict.rule if verdict else decision.reason,
            "confidence": verdict.confidence if verdict else None,
            "evidence": _facts(verdict)[:MOST_FACTS],
            "charged": decision.charged,
        }

    def _undo(self, decision: Decision) -> str:
        spec = self.gatherer.spec
        return by_hand.to_undo(decision.action, spec.name, spec.cluster)

    def action(self, view: RunView, decision: Decision, incident: str, k: int) -> None:
        self.record.incident_event(
            K.ACTION_TAKEN,
            view.attempt,
            incident,
            k,
            **self._told(decision),
            undo=self._undo(decision),
            depth=decision.depth,
            delay_seconds=decision.delay_seconds,
            budget_left=decision.budget_left,
            claim=contract.action(incident, k),
        )

    def withheld(self, view: RunView, decision: Decision, said: Decision, key: str, since: float) -> None:
        """What would have been done. The loss of an attempt is a fact all the same, and noted as one."""
        incident = incident_of(view, decision)
        ended = view.job is not None and view.job.status.ended
        if ended or view.cluster_gone:
            self.save_evidence(view, decision, incident)
        if ended:
            self.end_attempt(view, decision.verdict)
        spec = self.gatherer.spec
        told = {
            **self._told(decision),
            "cause": said.reason,
            "said": said.message,
            "by_hand": by_hand.to_do(decision.action, spec.name, spec.cluster),
        }
        self.record.withheld_event(view.attempt, incident, key, since, told)

    def unclaimed(self, view: RunView, decision: Decision) -> None:
        """An act that belongs to no incident of the run and is harmless to do twice."""
        self.record.own_event(
            K.ACTION_TAKEN,
            view.attempt,
            **self._told(decision),
            undo=self._undo(decision),
        )

    def end_attempt(self, view: RunView, verdict: Verdict | None) -> None:
        self.record.attempt_event(
            K.ATTEMPT_ENDED,
            view.attempt,
            attempt=view.attempt,
            status=view.job.status if view.job else "LOST",
            exit_code=view.job.exit_code if view.job else None,
            failure_class=verdict.failure_class if verdict else None,
            step=view.progress.step if view.progress else None,
        )

    def running(self, view: RunView) -> None:
        """Also completes what a supervisor that was killed after its submission could not note."""
        if view.job is None or view.finished:
            return
        if not view.submitted:
            self.record.attempt_event(
                K.ATTEMPT_SUBMITTED,
                view.attempt,
                attempt=view.attempt,
                submission_id=self.gatherer.id(view.attempt),
            )
        if view.job.driver_node and not self.record.has_event(K.ATTEMPT_RUNNING, view.attempt):
            self.record.attempt_event(
                K.ATTEMPT_RUNNING,
                view.attempt,
                attempt=view.attempt,
                driver_node=view.job.driver_node,
                driver_host=view.job.driver_host,
            )

    def waiting(self, view: RunView, decision: Decision) -> None:
        """On change of the reason, not each tick."""
        key = (view.attempt, decision.reason)
        if key == self._waited:
            return
        self._waited = key
        since = self.gatherer.clock.now() - max(view.pending_age, view.api_age)
        self.record.own_event(
            K.WAITING, view.attempt, reason=decision.reason, message=decision.message, since=since
        )


def incident_id(attempt: int) -> str:
    """One incident ends an attempt, so its number is fixed and two supervisors mean the same one."""
    return f"s{attempt:04d}-1"


def incident_of(view: RunView, decision: Decision) -> str:
    """The one that a decision belongs to: its own, as that of a resume, or the end of the attempt."""
    return str(decision.details.get("incident") or incident_id(view.attempt))


def _facts(verdict: Verdict | None) -> list[dict[str, Any]]:
    found = verdict.evidence if verdict else ()
    return [{"source": e.source, "time": e.time, "line": e.text[:500]} for e in found]
