"""Which decisions are automation, and what is said where one of them is not carried out.

`ops.restraints` asks before every act. What a person asked for (a first submission, a stop, a resume) is
never held back; neither is the record of an end, which touches nothing but the run directory.
"""

from __future__ import annotations

from dataclasses import dataclass

from steadyray.contract import FailureClass

from ops.policy import by_hand
from ops.policy.model import Action, Decision, RunView
from ops.policy.resubmission import RESUMED

OBSERVES = "Observes"
BREAKER_OPEN = "BreakerOpen"
ASKED_FOR = {FailureClass.CANCELLED, FailureClass.DEADLINE_EXCEEDED, FailureClass.CAPACITY_MISSING}
"""A job ends for these by a person's word: a stop, or a limit of time that was set."""
VERBS = {
    Action.SUBMIT: "submit",
    Action.RESUBMIT: "resubmit",
    Action.STOP: "stop the job",
    Action.RECREATE_CLUSTER: "make the cluster again",
    Action.RESTART_KEEPER: "start the keeper again",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """Why nothing is done: `reason` is one CamelCase word, `words` begin what a person reads."""

    reason: str
    words: str
    end: str = ""
    """What to type to end the restraint itself."""


OBSERVING = Cause(OBSERVES, "Observes")


def automated(view: RunView, decision: Decision) -> bool:
    """Whether nobody has asked for it."""
    match decision.action:
        case Action.STOP:
            return decision.verdict is None or decision.verdict.failure_class not in ASKED_FOR
        case Action.RESUBMIT:
            return decision.reason != RESUMED
        case Action.SUBMIT:
            return view.attempt > 1 and not _asked_for(view)
        case Action.RESTART_KEEPER:
            return not view.stop_requested  # which needs a head that answers
        case Action.RECREATE_CLUSTER:
            return True
        case _:
            return False


def _asked_for(view: RunView) -> bool:
    """Whether the attempt that was claimed and not yet submitted is that of a person's resume."""
    before = view.attempt - 1
    return any(
        (a.action == Action.RESUBMIT and a.reason == RESUMED and a.attempt == before)
        or (a.action == Action.RESUME and a.attempt == view.attempt)
        for a in view.history
    )


def breakable(decision: Decision) -> bool:
    """Whether the fleet's breaker holds it back: a submission completes an act that was let through."""
    return decision.action is not Action.SUBMIT


def counted(decision: Decision) -> bool:
    """Whether it counts for the fleet's breaker: a preemption is nobody's fault and comes in numbers."""
    return decision.action is not Action.SUBMIT and (
        decision.action is not Action.RESUBMIT or decision.charged
    )


def instead(view: RunView, decision: Decision, cause: Cause, cluster: str) -> Decision:
    """A wait in place of an act. Without the verdict, as nothing is being recovered."""
    hand = by_hand.to_do(decision.action, view.run, cluster)
    what = f"ould {VERBS[decision.action]} ({decision.reason}): {decision.message}"
    head = f"{cause.words}. {cause.end} W" if cause.end else f"{cause.words}: w"
    text = f"{head}{what} By hand: {hand}."
    return Decision(Action.WAIT, cause.reason, text, next="Nothing is done until a person acts.")


def key(decision: Decision, cause: Cause) -> str:
    """Equal for decisions that differ in nothing but the seconds they speak of."""
    verdict = decision.verdict
    judged = f"{verdict.failure_class}/{verdict.rule}" if verdict else ""
    return f"{cause.reason}:{decision.action}/{decision.reason}/{judged}"
