"""Which group could serve what waits, and why it is not served yet. Pure; `steadyray cluster status` shows
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GroupView:
    """A node group as it stands. `offers` is what one node of it has."""

    name: str
    floor: int
    max: int
    offers: Mapping[str, float]
    ready: int = 0
    starting: int = 0
    draining: int = 0
    idle: int = 0

    @property
    def nodes(self) -> int:
        return self.ready + self.starting


@dataclass(frozen=True, slots=True)
class Demand:
    """Something that waits: `count` times this bundle of resources, all on one node."""

    bundle: Mapping[str, float]
    count: int
    kind: str = "task or actor"
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Missing:
    """Why something waits."""

    what: str
    reason: str
    message: str


def explain(demand: Demand, groups: tuple[GroupView, ...]) -> Missing:
    """Why this demand waits, by the name of the group that could serve it, or of the resource none has."""
    what = f"{demand.count} x {words(demand.bundle)} ({demand.kind})"
    fitting = [group for group in groups if fits(demand.bundle, group.offers)]
    if not fitting:
        return Missing(what, "NoGroupFits", _no_group(demand.bundle, groups))
    growing = [group.name for group in fitting if group.starting]
    if growing:
        return Missing(what, "NodesStarting", f"nodes of group {', '.join(growing)} are starting")
    room = [group for group in fitting if group.nodes < group.max]
    if room:
        return Missing(what, "NodesComing", f"a node of group {room[0].name} will be started")
    full = ", ".join(f"{group.name} ({group.max})" for group in fitting)
    return Missing(what, "GroupsFull", f"every group that fits is at its max: {full}")


def fits(bundle: Mapping[str, float], offers: Mapping[str, float]) -> bool:
    return all(offers.get(name, 0.0) >= amount for name, amount in bundle.items() if amount > 0)


def _no_group(bundle: Mapping[str, float], groups: tuple[GroupView, ...]) -> str:
    faults = []
    for name, amount in bundle.items():
        best = max((group.offers.get(name, 0.0) for group in groups), default=0.0)
        if best < amount:
            offer = f"at most {best:g} on one node" if best else "in no group"
            faults.append(f"{name} {amount:g} ({offer})")
    return "no group has " + (", ".join(faults) or f"{words(bundle)} together on one node")


def words(bundle: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(bundle.items())) or "nothing"


def scaled(group: GroupView, count: int) -> str | None:
    """Why a floor of `count` is refused, or None."""
    if count < 0:
        return f"{count} is no number of nodes"
    if count > group.max:
        return f"group {group.name} may have {group.max} nodes at most"
    return None
