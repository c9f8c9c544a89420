"""Remove one node with a deadline: one bounded tick. The command line loops over it.

`ops.policy.draining` decides; this gathers, acts at most once, and returns the removal as it then stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ops.policy.draining import FINAL, TRANSITIONS, Action, Decision, NodeFacts, Removal, RemovalState, decide


class Nodes(Protocol):
    """The nodes of one cluster. Raises ClusterError."""

    def facts(self, node: str) -> NodeFacts | None:
        """What is seen of a node; None while the cluster does not answer."""

    def drain(self, node: str, seconds_left: float) -> bool:
        """Ask Ray to drain it; True when Ray then lists it as draining, or it has left already."""

    def end(self, node: str) -> None:
        """End all that is left of it."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """What a tick did; look again after `wake_seconds`, unless the removal is final."""

    removal: Removal
    decision: Decision
    wake_seconds: float

    @property
    def final(self) -> bool:
        return self.removal.state in FINAL


WAKE_SECONDS = 0.2


def tick(removal: Removal, nodes: Nodes, now: Callable[[], float]) -> Ticked:
    """Take the removal one step further."""
    facts = nodes.facts(removal.node)
    decision = decide(removal, facts, now())
    match decision.action:
        case Action.REFUSE:
            after = replace(_to(removal, RemovalState.REFUSED), refusal=decision.reason)
        case Action.DRAIN if nodes.drain(removal.node, removal.deadline - now()):
            after = _to(removal, RemovalState.DRAINING)
        case Action.CLEAN:
            nodes.end(removal.node)
            after = _to(_to(removal, RemovalState.DRAINED), RemovalState.REMOVED)
        case Action.CUT:
            nodes.end(removal.node)
            cut = facts.work if facts else ()
            after = replace(_to(_to(removal, RemovalState.REMOVING), RemovalState.TIMED_OUT), cut=cut)
        case _:
            after = removal
    return Ticked(after, decision, WAKE_SECONDS)


def _to(removal: Removal, state: RemovalState) -> Removal:
    if removal.state is not state and (removal.state, state) not in TRANSITIONS:
        raise AssertionError(f"a removal does not go from {removal.state} to {state}")
    return replace(removal, state=state)
