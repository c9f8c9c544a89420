"""Taking one node out of a cluster: what to do next, from what was asked and what is seen.

Pure; `ops.drain` gathers the facts and acts. Ray gives little help here (measured, Ray 2.60): a drain is
accepted for ids that do not exist and for the head, its deadline is never enforced, and no list of nodes
shows it. So an id is checked before the drain, the drain is looked up after it, and at the deadline the
node is ended by us.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RemovalState(StrEnum):
    """Where the removal of a node stands."""

    REQUESTED = "Requested"
    DRAINING = "Draining"
    DRAINED = "Drained"
    REMOVING = "Removing"
    REMOVED = "Removed"
    REFUSED = "Refused"
    TIMED_OUT = "TimedOut"


S = RemovalState

FINAL = frozenset({S.REMOVED, S.REFUSED, S.TIMED_OUT})

TRANSITIONS: dict[tuple[RemovalState, RemovalState], str] = {
    (S.REQUESTED, S.DRAINING): "Ray was asked, and lists the node as draining",
    (S.REQUESTED, S.DRAINED): "the node left before Ray could be asked",
    (S.REQUESTED, S.REFUSED): "it is the head, unknown or dead",
    (S.DRAINING, S.DRAINED): "its work ended and Ray left the node",
    (S.DRAINING, S.REMOVING): "the deadline passed with work on it",
    (S.DRAINED, S.REMOVED): "nothing of it is left",
    (S.REMOVING, S.TIMED_OUT): "its processes were ended, work was cut",
}


class Action(StrEnum):
    """What the caller has to do."""

    REFUSE = "Refuse"
    DRAIN = "Drain"
    WAIT = "Wait"
    CLEAN = "Clean"
    CUT = "Cut"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is seen of the node. `work` names what runs there; `draining` is what Ray lists."""

    known: bool
    alive: bool
    is_head: bool
    draining: bool = False
    work: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """One removal; times are the caller's monotonic seconds. `cut` names the work that was ended."""

    node: str
    deadline: float
    state: RemovalState = S.REQUESTED
    cut: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    reason: str
    message: str


def decide(removal: Removal, facts: NodeFacts | None, now: float) -> Decision:
    """The next thing to do. `facts` is None while the cluster does not answer: unknown is not gone."""
    if removal.state in FINAL:
        return Decision(Action.NONE, removal.state.value, f"{removal.node}: nothing left to do")
    if removal.state is S.DRAINED:
        return Decision(Action.CLEAN, "Drained", f"{removal.node} is empty: removing what is left of it")
    if removal.state is S.REMOVING:
        return _cut(removal, facts)
    if facts is None:
        return Decision(Action.WAIT, "ClusterSilent", f"{removal.node}: the cluster does not answer")
    if removal.state is S.REQUESTED:
        return _begin(removal, facts)
    return _draining(removal, facts, now)


def _begin(removal: Removal, facts: NodeFacts) -> Decision:
    if not facts.known:
        return Decision(Action.REFUSE, "UnknownNode", f"no node {removal.node} in this cluster")
    if facts.is_head:
        return Decision(
            Action.REFUSE, "HeadNode", f"{removal.node} is the head: without it the cluster is gone"
        )
    if not facts.alive:
        return Decision(Action.REFUSE, "DeadNode", f"{removal.node} is dead already")
    return Decision(Action.DRAIN, "Asked", f"draining {removal.node}")


def _draining(removal: Removal, facts: NodeFacts, now: float) -> Decision:
    if not facts.alive:
        return Decision(Action.CLEAN, "Drained", f"{removal.node} is empty: removing what is left of it")
    if now >= removal.deadline:
        return _cut(removal, facts)
    if not facts.draining:  # a head that was restarted has forgotten it
        return Decision(Action.DRAIN, "DrainForgotten", f"Ray no longer drains {removal.node}: asking again")
    left = removal.deadline - now
    work = ", ".join(facts.work) or "Ray itself"
    return Decision(Action.WAIT, "Busy", f"{removal.node} waits for {work}; {left:.0f} s to its deadline")


def _cut(removal: Removal, facts: NodeFacts | None) -> Decision:
    work = ", ".join(facts.work if facts else ()) or "its processes"
    return Decision(Action.CUT, "DeadlinePassed", f"the deadline of {removal.node} passed: ending {work}")
