"""Files of a run directory with content that makes no sense: passed over, or named, and never acted upon."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import World
from steadyray import contract

from ops import explain
from ops.errors import StoreError
from ops.presence import MARK
from ops.report import as_json, read_report
from ops.report_page import render_page
from ops.submission import finished_state, reopen

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
PLACES = {
    "progress": contract.progress(1),
    "hint": contract.failure(1),
    "exceptions": contract.exceptions(1),
    "presence": MARK,
    "rank": "attempts/0001/ranks/0.json",
    "act": "actions/s0001-1-1.json",
    "other act": "actions/x-1.json",
    "event": "events/supervisor-incident-s0009-1/000001.json",
    "waiting": "events/supervisor-x/000001.json",
    "withheld": "events/supervisor-withheld-0001/000001.json",
    "driver's event": "events/driver-0001-x/000001.json",
}
KEYS = (
    "step", "phase", "loss", "time", "ranks", "metrics", "message", "failure_class", "exceptions", "rank",
    "kind", "attempt", "incident", "k", "action", "charged", "completed", "best_step", "supervisor", "writer",
    "seq", "data", "host", "pid", "world_size",
)  # fmt: skip
TRUE_KINDS = st.sampled_from(["IncidentOpened", "Waiting", "ActionWithheld", "ActionTaken", "EvidenceSaved"])
RECORDS = ODD | st.dictionaries(st.sampled_from(KEYS), ODD | TRUE_KINDS, max_size=8)


def begun() -> World:
    world = World(1)
    for event in ("run", "steps", "checkpoint"):
        world.look()
        world.happen(event, 5)
    world.look()
    return world


def told(world: World) -> None:
    """Everything that a person may ask for."""
    explain.status(world.store)
    explain.as_text(explain.explain(world.fresh()))
    found = read_report(world.store, "r")
    json.dumps(as_json(found))
    render_page(found)


@pytest.mark.parametrize("depth", [300, 600, 100_000])
@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_record_that_is_nested_beyond_reason_is_none(place: str, depth: int) -> None:
    world = begun()
    world.store.files[PLACES[place]] = b'{"step": 1, "data": ' + b"[" * depth + b"]" * depth + b"}"
    world.look()
    told(world)
    assert world.job_runs()


@pytest.mark.parametrize("time", ["NaN", "Infinity"])
def test_a_resume_of_no_time_resets_nothing(time: str) -> None:
    world = begun()
    act = {
        "incident": "resume-0001",
        "k": 1,
        "attempt": 0,
        "action": "Resume",
        "failure_class": "",
        "time": 0,
    }
    content = json.dumps({**act, "charged": False, "best_step": 0}).replace('"time": 0', f'"time": {time}')
    world.store.files["actions/resume-0001-1.json"] = content.encode()
    view, _ = world.staff[0].explain()
    assert view.run_seconds > 0
    assert [a.action for a in view.history] == []


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(PLACES)), RECORDS)
def test_a_record_that_makes_no_sense_ends_nobody_and_leads_to_no_act(place: str, content: Any) -> None:
    world = begun()
    world.store.files[PLACES[place]] = json.dumps(content).encode()
    for _ in range(3):
        world.look()
    told(world)
    assert world.attempt == 1
    assert world.job_runs(), "the job goes on"
    world.happen("driver node", 1)
    for _ in range(20):
        world.look()
        world.clock.sleep(1.0)
    assert world.attempt == 2, "a loss is still dealt with"


NO_RESULTS = ("", "null", "{}", '{"state": []}', '{"state": "Foo"}', '{"state": "Failed", "attempt": "x"}')


@pytest.mark.parametrize("content", NO_RESULTS)
def test_a_result_that_cannot_be_read_is_named_and_mended_by_removing_it(content: str) -> None:
    world = begun()
    world.store.files[contract.RESULT] = content.encode()
    for ask in (finished_state, explain.status, lambda s: reopen(s, world.clock, world.spec)):
        with pytest.raises(StoreError, match=r"result\.json is damaged") as caught:
            ask(world.store)
        assert "remove that file" in caught.value.hint
    assert explain.summary(world.store)["state"] == "Damaged"
    with pytest.raises(StoreError, match="damaged"):
        world.fresh().tick()
    world.store.delete(contract.RESULT)
    assert world.finish()["state"] == "Succeeded"


HUGE = 10**400
"""JSON's integers have no end; a float has one."""


@pytest.mark.parametrize("place", ["progress", "rank", "exceptions", "driver's event"])
def test_a_number_beyond_all_floats_is_none(place: str) -> None:
    world = begun()
    record = dict.fromkeys(KEYS, HUGE) | {"exceptions": [dict.fromkeys(KEYS, HUGE)]}
    if place == "rank":
        del world.store.files[contract.progress(1)]  # it would be believed first
    world.store.files[PLACES[place]] = json.dumps(record).encode()
    world.look()
    told(world)
    assert world.job_runs()
