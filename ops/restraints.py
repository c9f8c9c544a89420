"""Whether an act may be done: not where the run or this machine only observes, nor while the fleet's breaker
is open. What is withheld is noted once per change of decision. Called by `ops.supervise` before every act.
"""

from __future__ import annotations

from dataclasses import replace

from ops.errors import StoreError
from ops.fleet import Fleet, Open
from ops.notes import Notes
from ops.policy import restraint
from ops.policy.model import Decision, Mode, RunView
from ops.policy.restraint import Cause


class Restraints:
    """Those of one supervisor."""

    def __init__(self, notes: Notes, mode: Mode, fleet: Fleet | None) -> None:
        self._notes = notes
        self._mode = mode
        self._fleet = fleet
        self._held: tuple[int, str, Decision] | None = None
        """Attempt, key and what was said: said in the same words as long as it is the same decision."""
        self._free = 0.0
        """Wall clock time of the last look at which nothing was withheld."""
        self._trouble = ""
        """Why the breaker of the fleet could not be asked before the act that is done now."""

    def would(self, view: RunView, decision: Decision) -> Decision:
        """`decision`, or what is said in its place. Changes nothing."""
        cause = self._cause(view, decision)
        return self._instead(view, decision, cause) if cause else decision

    def hold(self, view: RunView, decision: Decision) -> Decision | None:
        """What is said in place of an act that must not be done; None where it may."""
        if (cause := self._cause(view, decision)) is not None:
            return self._note(view, decision, cause)
        self._held, self._free = None, self._notes.gatherer.clock.now()
        return None

    def mark(self, view: RunView, decision: Decision) -> Decision | None:
        """The same once more, just before the act, and with its mark for the fleet to count."""
        if self._fleet is None or not (restraint.automated(view, decision) and restraint.counted(decision)):
            return None
        gatherer = self._notes.gatherer
        verdict = decision.verdict
        about = {
            "run": view.run,
            "attempt": view.attempt,
            "action": decision.action,
            "reason": decision.reason,
            "failure_class": verdict.failure_class if verdict else "",
            **self._notes.who(),
        }
        try:
            opened = self._fleet.mark(gatherer.id(view.attempt), about)
        except StoreError as error:
            self._troubled(error)
            return None
        return self._note(view, decision, self._breaker(opened)) if opened is not None else None

    def with_trouble(self, decision: Decision) -> Decision:
        """The decision as it is to be told, once it may be done."""
        return replace(decision, message=f"{decision.message} {self._trouble}") if self._trouble else decision

    def _cause(self, view: RunView, decision: Decision) -> Cause | None:
        self._trouble = ""
        if not restraint.automated(view, decision):
            return None
        if self._mode is Mode.OBSERVE:
            return restraint.OBSERVING
        if not restraint.breakable(decision):
            return None
        try:
            opened = self._fleet.opened() if self._fleet else None
        except StoreError as error:
            self._troubled(error)
            return None
        return self._breaker(opened) if opened is not None else None

    def _troubled(self, error: StoreError) -> None:
        """A storage that fails must not block every run for ever, so the act goes on, and says so."""
        said = self._notes.record.clean(str(error))
        self._trouble = f"The fleet's breaker could not be asked ({said}); acts go on without it."

    def _breaker(self, opened: Open) -> Cause:
        assert self._fleet is not None
        words = f"The fleet's breaker is open ({opened.why})"
        return Cause(restraint.BREAKER_OPEN, words, f"Close it: {self._fleet.close_command} --why TEXT.")

    def _instead(self, view: RunView, decision: Decision, cause: Cause) -> Decision:
        return restraint.instead(view, decision, cause, self._notes.gatherer.spec.cluster)

    def _note(self, view: RunView, decision: Decision, cause: Cause) -> Decision:
        key = restraint.key(decision, cause)
        if self._held is None or self._held[:2] != (view.attempt, key):
            said = self._instead(view, decision, cause)
            self._notes.withheld(view, decision, said, key, self._free)
            self._held = (view.attempt, key, said)
        return self._held[2]
