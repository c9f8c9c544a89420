"""A cluster that falls silent beside a living job: nothing is done, and afterwards it is noted."""

from __future__ import annotations

from typing import Any

import pytest
from simulated import World
from steadyray.contract import Event

from ops.policy.ledger import ledger


def silent_for(seconds: float, *, supervisors: int = 1, head: str = "head1", then: str = "") -> World:
    """A run that is watched, whose cluster does not answer for a while, and that is watched on."""
    world = World(supervisors)
    world.look()
    world.happen("run", 0)
    world.happen("steps", 5)
    world.look()
    world.cluster.silent = True
    world.look()
    world.clock.sleep(seconds)
    world.happen("steps", 40)
    world.look()
    world.cluster.silent = False
    world.cluster.head = head
    if then:
        world.happen(then, 0)
    for _ in range(12):
        world.look()
        world.clock.sleep(1.0)
    return world


def silences(world: World) -> list[dict[str, Any]]:
    return [e for e in world.events() if e["kind"] == "ClusterSilent"]


@pytest.mark.parametrize(
    ("seconds", "head", "replaced"), [(1.0, "head2", [True]), (9.0, "head1", [False]), (1.0, "head1", [])]
)
def test_a_new_head_is_noted_and_so_is_a_long_silence_but_no_late_answer(
    seconds: float, head: str, replaced: list[bool]
) -> None:
    world = silent_for(seconds, head=head)
    assert [e["data"]["head_replaced"] for e in silences(world)] == replaced
    for event in silences(world):
        data = event["data"]
        assert data["end"] - data["start"] == pytest.approx(seconds, abs=2)
        assert (data["from_step"], data["to_step"]) == (5, 45)
    assert "ActionTaken" not in world.kinds()


def test_a_dead_keeper_is_replaced_once_and_the_run_is_not_charged() -> None:
    world = World(2)
    world.look()
    world.happen("run", 0)
    world.look()
    world.cluster.silent = world.maker.keeper_gone = True
    for _ in range(6):
        world.look()
        world.clock.sleep(1.0)
    assert (world.maker.kept, world.maker.made) == (1, 0)
    [act] = [e for e in world.events() if e["kind"] == "ActionTaken"]
    assert act["data"]["action"] == "RestartKeeper"
    assert "IncidentOpened" not in world.kinds()


def test_an_attempt_that_ended_meanwhile_has_its_own_incident_and_no_silence() -> None:
    world = silent_for(9.0, head="head2", then="killed")
    assert silences(world) == []
    assert "IncidentOpened" in world.kinds()


def test_a_job_that_succeeds_before_the_head_is_back_leaves_the_silence_in_the_report() -> None:
    world = silent_for(9.0, head="head2", then="success")
    [silence] = silences(world)
    assert silence["data"]["head_replaced"]
    assert world.finish()["state"] == "Succeeded"


def test_two_supervisors_saw_one_silence_and_the_report_tells_it_once() -> None:
    world = silent_for(9.0, supervisors=2, head="head2")
    assert len(silences(world)) == 2
    [cost] = ledger([Event.from_json(e) for e in world.events()]).incidents
    assert cost.incident.failure_class == "HeadLost"
    assert cost.incident.action_message == "a new head took over; the job lived on (40 steps meanwhile)"
