"""A supervisor killed before and after each of its writes: the record is the one of a run without kills.

Each story is told once without a kill, which counts its writes, and then once for each place to die at. The
next supervisor, or the other one, has to complete what was begun: no event lost, none twice, no act twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from simulated import ENDINGS, Killed, World
from steadyray import contract

from ops.policy.model import JobStatus
from ops.submission import reopen

NEVER = 10**9
OWN = "RestartKeeper"
"""An act that is nobody's claim: each supervisor that does it says so."""
SEEN = frozenset({"ActionTaken", "ClusterSilent", "Waiting"})
"""Compared apart, or what a supervisor saw with its own eyes: one that was away then has not."""


def until(world: World, holds: Callable[[], Any], looks: int = 300) -> None:
    """Look until something holds. Three seconds a look, so that a dead one's claims come of age."""
    for _ in range(looks):
        if holds():
            return
        world.look()
        world.clock.sleep(3.0)
    raise AssertionError(f"never came: attempt {world.attempt}, {Counter(world.kinds())}")


def says(world: World, kind: str, times: int = 1) -> Callable[[], bool]:
    return lambda: world.kinds().count(kind) >= times


def begin(world: World, attempt: int = 1) -> None:
    until(world, lambda: world.newest in world.cluster.requests and world.attempt == attempt)
    until(world, says(world, "AttemptSubmitted", attempt))
    world.happen("run", 1)
    until(world, says(world, "AttemptRunning", attempt))
    world.happen("steps", 5)
    world.happen("checkpoint", 1)
    world.look()


def end(world: World) -> None:
    world.happen("success", 1)
    until(world, says(world, "RunFinished"))


def told(ending: str, retried: bool) -> Callable[[World], None]:
    def story(world: World) -> None:
        begin(world)
        world.happen(ending, 1)
        if retried:
            begin(world, 2)
        end(world)

    return story


def forgotten(world: World) -> None:
    begin(world)
    world.happen("forget", 1)
    begin(world, 2)
    end(world)


def gone(world: World) -> None:
    begin(world)
    world.happen("gone", 1)
    begin(world, 2)
    end(world)


def hung(world: World) -> None:
    begin(world)
    world.look()
    world.clock.sleep(700.0)
    begin(world, 2)
    end(world)


def stopped(world: World) -> None:
    begin(world)
    world.happen("stop", 1)
    until(world, says(world, "RunFinished"))


def stopped_before_it_ran(world: World) -> None:
    until(world, says(world, "AttemptSubmitted"))
    world.happen("stop", 1)
    until(world, says(world, "RunFinished"))


def without_a_keeper(world: World) -> None:
    begin(world)
    world.cluster.silent = world.maker.keeper_gone = True
    until(world, lambda: not world.cluster.silent)
    end(world)


def resumed(world: World) -> None:
    """The person comes as soon as there is a result, whatever its writer still had to note."""
    begin(world)
    world.happen("user error", 1)
    until(world, lambda: world.store.get(contract.RESULT))
    for _ in range(2):  # a person whose command died types it again
        try:
            reopen(world.store, world.clock, world.spec)
            break
        except Killed:
            pass
    world.staff = [world.fresh() for _ in world.staff]  # those before went home with the result
    begin(world, 2)
    world.happen("success", 1)
    until(world, says(world, "RunFinished", 2))


RETRIED = {"driver node", "killed", "preempted"}
STORIES: dict[str, Callable[[World], None]] = {
    **{ending: told(ending, ending in RETRIED) for ending in ENDINGS},
    **{f.__name__: f for f in (
        forgotten, gone, hung, stopped, stopped_before_it_ran, without_a_keeper,
        resumed,
    )},
}  # fmt: skip


def record_of(story: Callable[[World], None], supervisors: int, fuse: int) -> tuple[dict[str, Any], int]:
    """What a stranger reads of the run, and how many places to die at it came by."""
    world = World(supervisors)
    world.store.fuse = fuse
    story(world)
    left, world.store.fuse = world.store.fuse, -1
    for _ in range(3):
        world.look()
    events = world.events()
    acts = [
        (e["incident"], e["data"]["action"])
        for e in events
        if e["kind"] == "ActionTaken" and e["data"]["action"] != OWN
    ]
    counted = Counter(e["kind"] for e in events if e["kind"] not in SEEN)
    result = world.data("RunFinished")[-1]
    record = {
        "events": dict(sorted(counted.items())),
        "acts": sorted(acts),
        "keeper": any(e["data"].get("action") == OWN for e in events),
        "result": (result["state"], result["failure_class"]),
        "attempts": world.attempt,
        "clusters made": world.maker.made,
    }
    return record, fuse - left


@pytest.mark.parametrize("story", STORIES)
def test_the_record_is_whole_wherever_the_only_supervisor_was_killed(story: str) -> None:
    whole, places = record_of(STORIES[story], 1, NEVER)
    assert places > 20
    for fuse in range(1, places + 1):
        assert record_of(STORIES[story], 1, fuse)[0] == whole, f"killed at place {fuse} of {places}"


@pytest.mark.parametrize("story", STORIES)
def test_the_record_is_whole_wherever_one_of_two_supervisors_was_killed(story: str) -> None:
    whole, places = record_of(STORIES[story], 2, NEVER)
    for fuse in range(1, places + 1, 5):
        assert record_of(STORIES[story], 2, fuse)[0] == whole, f"killed at place {fuse} of {places}"


@pytest.mark.parametrize("event", ["gone", "stop", "success after all"])
def test_an_act_that_was_begun_and_is_no_longer_due_hides_no_other(event: str) -> None:
    """Killed between the claim of a next attempt and that attempt; then something else has to be done."""
    met = 0
    for fuse in range(1, 30):
        world = World(1)
        begin(world)
        world.happen("driver node", 1)
        world.store.fuse = fuse
        world.look()
        if world.attempt != 1 or not world.store.list("actions"):
            continue
        met += 1
        if event == "success after all":
            world.cluster.move(world.newest, JobStatus.FAILED, JobStatus.SUCCEEDED, exit_code=0)
        else:
            world.happen(event, 1)
        if event == "gone":
            begin(world, 2)
            end(world)
        until(world, says(world, "RunFinished"))
        done = [act for act in world.acts() if act != "Resubmit"]
        assert done == {"gone": ["RecreateCluster"], "stop": ["Stop"], "success after all": []}[event]
        charged = [a for a in world.staff[0].gatherer.actions() if a.action == "Resubmit" and a.charged]
        assert event != "gone" or len(charged) == 1, "one loss costs one"
        assert world.data("RunFinished")[0]["state"] == ("Stopped" if event == "stop" else "Succeeded")
    assert met >= 5
