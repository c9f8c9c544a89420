"""Observing and an open breaker: every decision is taken and noted, none is done that nobody asked for."""

from __future__ import annotations

from typing import Any

import pytest
from mortal_store import MortalStore
from simulated import ENDINGS, World

from ops import audit, explain
from ops.adapters.fakes import MemoryStore
from ops.errors import StoreError
from ops.fleet import Fleet
from ops.policy.breaker import Limits
from ops.policy.model import Budgets, Mode
from ops.submission import reopen

RETRIED = ("driver node", "killed", "preempted")


def observing(supervisors: int = 1) -> World:
    return begun(World(supervisors, mode=Mode.OBSERVE))


def begun(world: World) -> World:
    for event in ("run", "steps", "checkpoint"):
        world.look()
        world.happen(event, 5)
    world.look()
    return world


def later(world: World, looks: int = 8, seconds: float = 5.0) -> World:
    for _ in range(looks):
        world.look()
        world.clock.sleep(seconds)
    return world


def test_the_first_submission_is_a_persons_and_is_done() -> None:
    assert len(observing().cluster.requests) == 1


@pytest.mark.parametrize("ending", RETRIED)
def test_a_lost_attempt_is_not_submitted_again_but_judged_and_noted_once(ending: str) -> None:
    world = observing(supervisors=2)
    world.happen(ending, 1)
    later(world)
    assert world.attempt == 1
    assert world.acts() == []
    [held] = world.data("ActionWithheld")
    [opened] = world.data("IncidentOpened")
    assert (held["action"], held["cause"]) == ("Resubmit", "Observes")
    assert held["failure_class"] == opened["failure_class"] != ""
    assert held["rule"] == opened["rule"]
    assert held["evidence"]
    assert held["who"].startswith(f"supervisor-{held['host']}-")
    assert held["by_hand"] == "steadyray job stop r; then steadyray job resume r"
    assert world.kinds().count("AttemptEnded") == 1


@pytest.mark.parametrize("ending", [e for e in ENDINGS if e not in RETRIED])
def test_an_end_that_is_not_retried_is_recorded_as_ever(ending: str) -> None:
    world = observing()
    world.happen(ending, 1)
    later(world)
    assert world.kinds().count("RunFinished") == 1
    assert world.kinds().count("ActionWithheld") == 0


def test_success_ends_the_run() -> None:
    assert observing().finish()["state"] == "Succeeded"


def test_a_hung_driver_is_not_stopped_and_may_go_on() -> None:
    world = later(observing(), looks=20, seconds=40.0)
    assert world.job_runs()
    [held] = world.data("ActionWithheld")
    assert (held["action"], held["reason"]) == ("Stop", "DriverHung")
    assert world.kinds().count("IncidentOpened") == 0, "nothing is lost"
    world.happen("steps", 1)
    world.look()
    assert world.staff[0].state == "Running"
    later(world, looks=20, seconds=40.0)
    assert len(world.data("ActionWithheld")) == 2, "it hung a second time"
    assert world.finish()["state"] == "Succeeded"


def test_a_gone_cluster_is_not_made_and_a_lost_keeper_not_started() -> None:
    world = observing()
    world.happen("gone", 1)
    later(world)
    assert world.maker.made == 0
    assert [d["action"] for d in world.data("ActionWithheld")] == ["RecreateCluster"]
    world = observing()
    world.cluster.silent = world.maker.keeper_gone = True
    later(world)
    assert world.maker.kept == 0
    assert [d["action"] for d in world.data("ActionWithheld")] == ["RestartKeeper"]


def test_a_persons_stop_is_done() -> None:
    world = observing()
    world.happen("stop", 1)
    later(world)
    assert world.kinds().count("RunFinished") == 1
    assert not world.cluster.running()


def test_what_to_do_by_hand_works_and_the_attempt_is_the_next() -> None:
    """Stop and resume, as the event says; the resumed attempt is a person's, also if its maker died."""
    world = observing()
    world.happen("killed", 1)
    later(world)
    world.happen("stop", 1)
    later(world, looks=2)
    reopen(world.store, world.clock, world.spec)
    world.store.fuse = 14
    later(world, looks=4)
    assert world.attempt == 2
    assert world.finish()["state"] == "Succeeded"
    assert world.acts().count("Resubmit") == 1


def test_a_machine_that_observes_leaves_the_acts_to_the_others() -> None:
    world = World(2)
    world.staff[0].observe = True
    world.staff[0].__post_init__()
    begun(world)
    world.happen("killed", 1)
    later(world, looks=3)
    assert world.attempt == 2
    assert world.acts() == ["Resubmit"]
    assert world.data("ActionTaken")[0]["who"] == world.staff[1].record.id


def test_status_and_explain_say_what_would_have_been_done() -> None:
    world = observing()
    world.happen("killed", 1)
    later(world)
    shown = explain.status(world.store)
    assert shown["mode"] == "observe"
    assert shown["state"] == "Waiting"
    assert shown["message"].startswith("Observes: would resubmit (")
    story = explain.explain(world.staff[0])
    assert story["now"].startswith("Observes: would resubmit (")
    text = explain.as_text(story)
    assert "withheld: Observes: would resubmit (" in text
    assert "decision:  ()" not in text
    tick = world.staff[0].tick()
    assert tick.snapshot.waiting.startswith("Observes: would resubmit ("), "the live view shows this"


def test_the_audit_tells_the_same_decision_whether_it_was_done_or_withheld() -> None:
    told = []
    for world in (observing(), begun(World(1))):
        world.happen("driver node", 1)
        later(world, looks=4)
        [entry] = audit.audit([("r", lambda store=world.store: store)], since=0.0)["incidents"]
        told.append(entry)
    held, done = told
    assert [e["decided"] for e in told] == ["Resubmit", "Resubmit"]
    assert [e["failure_class"] for e in told] == ["DriverLost", "DriverLost"]
    assert (held["done"], held["withheld"], held["outcome"]) == ("nothing", True, "still open")
    assert (done["done"], done["withheld"]) == ("Resubmit", False)
    assert held["by_hand"]
    assert done["undo"]


def test_every_act_says_who_why_and_how_to_take_it_back() -> None:
    world = begun(World(1))
    world.happen("driver node", 1)
    later(world, looks=3)
    [act] = world.data("ActionTaken")
    assert act["who"] == world.staff[0].record.id
    assert act["undo"] == "steadyray job stop r ends the new attempt; its checkpoints stay"
    assert act["rule"]
    assert 0 < act["confidence"] <= 1
    assert act["evidence"]


def fleet_of(runs: int, limits: Limits, budgets: Budgets | None = None) -> list[World]:
    """Runs and clusters of their own, one store of marks."""
    beside = MortalStore(url="memory/_fleet")
    worlds = []
    for n in range(runs):
        world = World(1, store=MortalStore(url=f"memory/run{n}"))
        if budgets is not None:
            world.spec = world.spec.model_copy(update={"budgets": budgets})
        world.fleet = Fleet(lambda: beside, world.clock)
        world.staff = [world.fresh()]
        worlds.append(begun(world))
    worlds[0].fleet.limit(limits)
    return worlds


# --- the breaker --------------------------------------------------------------------------------------
def tripped() -> World:
    world = begun(World(1, limits=Limits(acts=0)))
    world.happen("driver node", 1)
    return later(world)


def test_an_open_breaker_holds_back_what_it_would_charge_until_a_person_closes_it() -> None:
    world = tripped()
    assert world.attempt == 1
    assert world.acts() == []
    [held] = world.data("ActionWithheld")
    assert held["cause"] == "BreakerOpen"
    assert "steadyray fleet close --why TEXT" in held["said"]
    world.fleet.limit(Limits())
    assert world.fleet.close("ann", "seen") is not None
    later(world, looks=2)
    assert world.attempt == 2
    assert world.acts() == ["Resubmit"]


def test_a_persons_stop_is_done_while_the_breaker_is_open() -> None:
    world = tripped()
    world.happen("stop", 1)
    later(world, looks=2)
    assert world.kinds().count("RunFinished") == 1


def test_preemptions_do_not_count_and_wait_all_the_same_once_it_is_open() -> None:
    world = begun(World(1, limits=Limits(acts=0)))
    world.happen("preempted", 1)
    later(world, looks=2)
    assert world.attempt == 2
    world.fleet.trip("by hand", {})
    world.happen("run", 1)
    world.look()
    world.happen("preempted", 1)
    later(world, looks=3)
    assert world.attempt == 2


def test_many_runs_that_fail_together_open_it_for_all() -> None:
    """The acts beyond the limit are not done; those before it are done to their end."""
    worlds = fleet_of(9, Limits(acts=5))
    for world in worlds:
        world.happen("driver node", 1)
    for _ in range(4):  # in step, so that the breaker opens between a claim and its submission
        for world in worlds:
            later(world, looks=1, seconds=0.1)
    assert [world.attempt for world in worlds] == [2] * 5 + [1] * 4
    assert [len(world.cluster.requests) for world in worlds] == [2] * 5 + [1] * 4
    worlds[0].fleet.limit(Limits(acts=9))
    worlds[0].fleet.close("ann", "one node, nine runs")
    for world in worlds:
        later(world, looks=3, seconds=0.1)
    assert [len(world.cluster.requests) for world in worlds] == [2] * 9


def test_a_limit_that_a_person_set_ends_runs_in_any_number() -> None:
    worlds = fleet_of(9, Limits(acts=5), Budgets(time_seconds=60.0))
    for world in worlds:
        world.clock.sleep(61.0)
        later(world, looks=3)
    assert [world.data("RunFinished")[0]["failure_class"] for world in worlds] == ["DeadlineExceeded"] * 9


def test_a_cluster_and_its_next_attempt_are_one_loss_and_a_keeper_that_dies_again_too() -> None:
    world = begun(World(1, limits=Limits(acts=1)))
    world.happen("gone", 1)
    later(world, looks=4)
    assert (world.maker.made, world.attempt) == (1, 2)
    world = begun(World(1, limits=Limits(acts=1)))
    for _ in range(5):
        world.cluster.silent = world.maker.keeper_gone = True
        later(world, looks=4, seconds=1.0)
    assert world.maker.kept == 5


def test_what_a_person_asks_for_by_stop_and_resume_is_done_whatever_was_begun_before() -> None:
    """The breaker opens while an attempt is claimed and not submitted; the text says: stop, then resume."""
    world = begun(World(1))
    world.happen("killed", 1)
    while world.attempt == 1:
        world.look()
    assert len(world.cluster.requests) == 1
    world.spec = world.spec.model_copy(update={"mode": Mode.OBSERVE})
    world.staff = [world.fresh()]
    later(world, looks=3)
    assert len(world.cluster.requests) == 1, "withheld"
    world.happen("stop", 1)
    later(world, looks=2)
    reopen(world.store, world.clock, world.spec)
    world.staff = [world.fresh()]
    later(world, looks=4)
    assert len(world.cluster.requests) == 2


@pytest.mark.parametrize("how", ["observe", "breaker"])
def test_a_stop_gets_the_head_that_it_needs(how: str) -> None:
    world = observing() if how == "observe" else begun(World(1))
    if how == "breaker":
        world.fleet.trip("by hand", {})
    world.cluster.silent = world.maker.keeper_gone = True
    later(world, looks=3)
    assert world.maker.kept == 0
    world.happen("stop", 1)
    later(world)
    assert world.maker.kept == 1
    assert world.kinds().count("RunFinished") == 1


def test_what_was_withheld_and_then_done_is_told_as_done() -> None:
    world = tripped()
    world.fleet.limit(Limits())
    world.fleet.close("ann", "seen")
    later(world, looks=2)
    [told] = explain.incidents(world.store)
    assert (told["action"], told["withheld"]) == ("Resubmit", "")


def test_a_damaged_note_of_what_was_withheld_ends_nobody() -> None:
    world = observing()
    world.store.files["events/supervisor-withheld-0001/00000003.json"] = b'{"kind": "Odd", "data": []}'
    world.happen("killed", 1)
    later(world)
    assert len(world.data("ActionWithheld")) == 1


class NoStore(MemoryStore):
    def _refuse(self, *_: Any) -> Any:
        raise StoreError("the disk is full")

    create = put = get = list = delete = _refuse


def test_a_fleet_folder_that_fails_does_not_block_the_run_and_the_act_says_so() -> None:
    world = begun(World(1))
    world.staff[0].restraints._fleet = Fleet(NoStore, world.clock)
    world.happen("driver node", 1)
    later(world, looks=3)
    assert world.attempt == 2
    [act] = world.data("ActionTaken")
    assert (
        "The fleet's breaker could not be asked (the disk is full); acts go on without it." in act["message"]
    )
