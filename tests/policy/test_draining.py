"""Removing a node: every situation that can be seen, and what is decided."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.drain import tick
from ops.policy.draining import (
    FINAL,
    TRANSITIONS,
    Action,
    NodeFacts,
    Removal,
    RemovalState,
    decide,
)

S = RemovalState
BUSY = NodeFacts(known=True, alive=True, is_head=False, draining=True, work=("Rank.step",))
ASKED = Removal("cpu-1", deadline=100.0)
DRAINING = replace(ASKED, state=S.DRAINING)


@pytest.mark.parametrize(
    ("removal", "facts", "now", "action", "reason"),
    [
        (ASKED, None, 0, Action.WAIT, "ClusterSilent"),
        (ASKED, NodeFacts(False, False, False), 0, Action.REFUSE, "UnknownNode"),
        (ASKED, NodeFacts(True, True, True), 0, Action.REFUSE, "HeadNode"),
        (ASKED, NodeFacts(True, False, False), 0, Action.REFUSE, "DeadNode"),
        (ASKED, replace(BUSY, draining=False), 0, Action.DRAIN, "Asked"),
        (ASKED, replace(BUSY, draining=False), 101, Action.DRAIN, "Asked"),
        (DRAINING, None, 101, Action.WAIT, "ClusterSilent"),
        (DRAINING, BUSY, 99, Action.WAIT, "Busy"),
        (DRAINING, BUSY, 100, Action.CUT, "DeadlinePassed"),
        (DRAINING, replace(BUSY, draining=False), 99, Action.DRAIN, "DrainForgotten"),
        (DRAINING, replace(BUSY, draining=False), 100, Action.CUT, "DeadlinePassed"),
        (DRAINING, NodeFacts(True, False, False), 99, Action.CLEAN, "Drained"),
        (DRAINING, NodeFacts(True, False, False), 101, Action.CLEAN, "Drained"),
        (DRAINING, NodeFacts(False, False, False), 99, Action.CLEAN, "Drained"),
        (replace(ASKED, state=S.DRAINED), None, 0, Action.CLEAN, "Drained"),
        (replace(ASKED, state=S.REMOVING), None, 0, Action.CUT, "DeadlinePassed"),
        (replace(ASKED, state=S.REMOVED), BUSY, 0, Action.NONE, "Removed"),
        (replace(ASKED, state=S.TIMED_OUT), BUSY, 200, Action.NONE, "TimedOut"),
    ],
)
def test_decision(removal: Removal, facts: NodeFacts | None, now: float, action: Action, reason: str) -> None:
    decision = decide(removal, facts, now)
    assert (decision.action, decision.reason) == (action, reason)
    assert removal.node in decision.message


def test_waiting_names_the_work_and_the_time_left() -> None:
    assert decide(DRAINING, BUSY, 88.0).message == "cpu-1 waits for Rank.step; 12 s to its deadline"


seen = st.none() | st.builds(
    NodeFacts,
    known=st.booleans(),
    alive=st.booleans(),
    is_head=st.booleans(),
    draining=st.booleans(),
    work=st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple),
)


class World:
    """Nodes that show what a test says, and remember what was done to them."""

    def __init__(self, looks: list[NodeFacts | None], drains: bool) -> None:
        self.looks, self.drains, self.ended = looks, drains, 0

    def facts(self, node: str) -> NodeFacts | None:
        return self.looks.pop(0)

    def drain(self, node: str, seconds_left: float) -> bool:
        return self.drains

    def end(self, node: str) -> None:
        self.ended += 1


@given(st.lists(seen, min_size=1, max_size=12), st.booleans(), st.integers(0, 12))
def test_whatever_is_seen_a_removal_moves_legally_and_ends_a_node_at_most_once(
    looks: list[NodeFacts | None], drains: bool, deadline: int
) -> None:
    world, removal, clock = World(list(looks), drains), Removal("n", float(deadline)), 0.0
    for look in looks:
        if removal.state in FINAL:
            break
        before = removal
        removal = tick(before, world, lambda at=clock: at).removal
        if world.ended and look is not None:
            assert not (look.alive and clock < deadline), "a living node was ended before its deadline"
        if before.state is S.REQUESTED and look is not None and look.is_head and look.known:
            assert removal.state is S.REFUSED
        clock += 1.0
    assert world.ended <= 1
    assert (world.ended == 1) == (removal.state in {S.REMOVED, S.TIMED_OUT})


def test_every_state_but_the_first_is_reached_and_every_one_but_the_last_is_left() -> None:
    assert {after for _, after in TRANSITIONS} == set(S) - {S.REQUESTED}
    assert {before for before, _ in TRANSITIONS} == set(S) - FINAL


def test_the_document_has_each_move_of_a_removal_with_its_reason() -> None:
    document = (Path(__file__).resolve().parents[2] / "docs/states.md").read_text()
    section = document.split("## Removal of a node")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and line[2].isupper()]
    assert rows == [f"| {before} | {after} | {why} |" for (before, after), why in TRANSITIONS.items()]
