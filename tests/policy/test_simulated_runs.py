"""Whole runs under random faults, with the real supervisor over a fake cluster: what must always hold.

One or two supervisors, either of which may be killed between any two of its steps; the store and the
cluster keep what they have, as they would.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import ENDINGS, World

from ops.policy.model import FINAL, Action

EVENTS = st.sampled_from(
    [
        "run",
        "steps",
        "steps",
        "checkpoint",
        *ENDINGS,
        "silence",
        "answer",
        "forget",
        "gone",
        "stop",
        "kill",
        "wait",
    ]
)

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(st.integers(1, 2), st.lists(st.tuples(EVENTS, st.integers(1, 12)), max_size=40))
def test_whatever_happens_there_is_one_attempt_at_a_time_and_an_end(
    supervisors: int, events: list[tuple[str, int]]
) -> None:
    world = World(supervisors)
    ended_by_user = False
    for event, number in events:
        before = world.job_runs()
        world.happen(event, number)
        ended_by_user = ended_by_user or (before and event in ("user error", "environment"))
        attempts = world.attempt
        world.look()
        if ended_by_user:
            assert world.attempt == attempts, "a user error is retried by nobody"
    result = world.finish()
    assert result["state"] in set(FINAL)
    assert world.kinds().count("RunFinished") == 1, "a run ends once, and says so once"


@SLOW
@given(st.integers(1, 60), st.integers(1, 2))
def test_a_supervisor_killed_at_any_write_leaves_a_run_that_the_next_one_completes(
    fuse: int, supervisors: int
) -> None:
    """Every place between lease, submission, record, evidence, claim, act and completion is tried."""
    world = World(supervisors)
    world.store.fuse = fuse
    for event in ("run", "steps", "checkpoint", "driver node", "wait", "run", "steps"):
        for _ in range(3):
            world.look()
        world.happen(event, 1)
    result = world.finish()
    assert result["state"] == "Succeeded"
    assert result["attempt"] == 2, "one loss, one more attempt"
    kinds = world.kinds()
    assert kinds.count("RunFinished") == 1
    assert kinds.count("AttemptClaimed") == 2
    assert kinds.count("AttemptSubmitted") == 2
    assert kinds.count("ActionTaken") == 1


def test_an_act_completed_between_anothers_look_and_its_act_is_not_repeated() -> None:
    """The slower one decided on the same loss; what it would claim must be what the faster one holds."""
    world = World(2)
    for event in ("run", "steps", "checkpoint"):
        world.look()
        world.happen(event, 1)
    world.look()
    world.happen("driver node", 1)
    fast, slow = world.staff
    look = slow.gatherer.look

    def look_then_be_overtaken() -> Any:
        view = look()
        slow.gatherer.look = look  # type: ignore[method-assign]
        assert fast.tick().decision.action is Action.RESUBMIT
        return view

    slow.gatherer.look = look_then_be_overtaken  # type: ignore[method-assign]
    assert slow.tick().decision.reason == "AnotherSupervisor"
    assert world.kinds().count("ActionTaken") == 1
    assert world.finish()["attempt"] == 2


def lost_node(moving: bool) -> World:
    """The head knows that the driver's node is dead; its Jobs API still calls the job running."""
    world = World(1)
    for event in ("run", "steps", "checkpoint"):
        world.look()
        world.happen(event, 1)
    world.look()
    world.cluster.dead_nodes = {"node1"}
    for _ in range(10):
        world.clock.sleep(1.0)
        if moving:
            world.happen("steps", 1)
        world.staff[0].tick()
    return world


def test_a_dead_node_and_a_standstill_end_an_attempt_that_the_jobs_api_calls_running() -> None:
    world = lost_node(moving=False)
    [opened] = [e for e in world.events() if e["kind"] == "IncidentOpened"]
    assert opened["data"]["failure_class"] == "DriverLost"
    assert world.attempt == 2


def test_a_dead_node_whose_driver_makes_steps_is_left_alone() -> None:
    world = lost_node(moving=True)
    assert world.attempt == 1
    assert "IncidentOpened" not in world.kinds()
