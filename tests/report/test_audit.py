"""The audit: what was decided, done or withheld, and what came of it, from made-up event streams."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steadyray.contract import Event, EventKind
from streams import Stream, eventful, write_run

from ops import audit, cli
from ops.adapters.fakes import MemoryStore
from ops.adapters.run_store import open_store
from ops.cli.audit import seconds
from ops.errors import StoreError, UsageError
from ops.policy.audit import Entry, counts, entries

ME = "supervisor-host-1-aaaaaaaa"


def lost(s: Stream, **act: Any) -> Stream:
    """An attempt that made 100 steps and lost its driver; then what the supervisor says about it."""
    s.submitted(1, 4).formed(5, world_size=1).steps(6, 16, 0, 100)
    s.supervisor(20, "AttemptEnded", status="FAILED", failure_class="DriverLost", step=100)
    s.supervisor(21, "IncidentOpened", incident="s0001-1", failure_class="DriverLost", rule="DriverNode",
                 message="its node died", fault_time=18, step=100)  # fmt: skip
    kind = "ActionWithheld" if "cause" in act else "ActionTaken"
    return s.supervisor(22, kind, incident="s0001-1", action="Resubmit", reason="DriverLost", who=ME, **act)


def created() -> Stream:
    return Stream().supervisor(0, "RunCreated", name="r")


def test_a_resubmission_says_who_how_to_undo_it_and_where_the_run_went_on() -> None:
    s = lost(created(), undo="steadyray job stop r").submitted(23, 25).steps(27, 30, 90, 120)
    [entry] = entries("r", s.events)
    assert (entry.failure_class, entry.decided, entry.done) == ("DriverLost", "Resubmit", "Resubmit")
    assert (entry.who, entry.undo, entry.outcome) == (ME, "steadyray job stop r", "recovered at step 91")
    assert not entry.withheld


def test_what_was_withheld_is_decided_and_not_done_and_still_open() -> None:
    [entry] = entries("r", lost(created(), cause="Observes", by_hand="steadyray job resume r").events)
    assert (entry.decided, entry.done, entry.withheld) == ("Resubmit", "nothing", True)
    assert (entry.who, entry.by_hand, entry.outcome) == ("", "steadyray job resume r", "still open")


def test_what_was_withheld_and_then_done_counts_as_done() -> None:
    s = lost(created(), cause="BreakerOpen")
    s.supervisor(90, "ActionTaken", incident="s0001-1", action="Resubmit", reason="DriverLost", who=ME)
    [entry] = entries("r", s.events)
    assert (entry.done, entry.withheld, entry.who) == ("Resubmit", False, ME)


@pytest.mark.parametrize(("running", "outcome"), [(True, "attempt 2 runs"), (False, "still open")])
def test_a_script_without_steps_recovers_when_its_next_attempt_runs(running: bool, outcome: str) -> None:
    s = lost(created())
    if running:
        s.submitted(23, 25)
    assert entries("r", s.events)[0].outcome == outcome


def test_an_end_is_told_with_its_state() -> None:
    s = lost(created()).finished(40, "Failed")
    assert entries("r", s.events)[0].outcome == "ended Failed"


def test_an_act_without_an_incident_has_an_entry_of_its_own() -> None:
    s = created().submitted(1, 4)
    s.supervisor(9, "ActionTaken", action="RestartKeeper", reason="KeeperGone", who=ME, undo="down")
    s.supervisor(50, "ActionWithheld", action="Stop", reason="DriverHung", failure_class="Hang",
                 cause="Observes", incident="s0001-1")  # fmt: skip
    s.steps(60, 70, 0, 10)
    hang, keeper = entries("r", s.events)
    assert (keeper.decided, keeper.who, keeper.undo) == ("RestartKeeper", ME, "down")
    assert (hang.decided, hang.done, hang.failure_class) == ("Stop", "nothing", "Hang")
    assert hang.outcome == "recovered at step 1"


def test_recoveries_within_a_job_are_those_of_the_library() -> None:
    driver, worker = entries("digits", eventful().events)
    assert (worker.who, worker.outcome) == ("training library", "recovered at step 101")
    assert driver.outcome == "recovered at step 151"


def test_kinds_are_counted_with_what_was_withheld() -> None:
    found = entries("a", lost(created()).events) + entries("b", lost(created(), cause="Observes").events)
    assert counts(found) == [
        {"failure_class": "DriverLost", "action": "Resubmit", "incidents": 2, "withheld": 1}
    ]


@given(
    st.lists(
        st.builds(
            Event,
            time=st.floats(-1e9, 1e9) | st.just(float("nan")),
            kind=st.sampled_from(list(EventKind)),
            writer=st.sampled_from(["driver-0001-x", ME, "supervisor-incident-s0001-1"]),
            seq=st.integers(1, 30),
            attempt=st.integers(0, 3),
            incident=st.sampled_from(["", "s0001-1", "0001-g001"]),
            data=st.dictionaries(
                st.sampled_from(["action", "who", "from_step", "to_step", "start", "end", "state"]),
                st.none() | st.integers(-5, 5) | st.sampled_from(["", "Stop"]),
            ),
        ),
        max_size=25,
    )
)
def test_no_events_however_damaged_make_it_fail(events: list[Event]) -> None:
    found = entries("r", events)
    assert list(found) == sorted(found, key=lambda e: e.time, reverse=True)
    assert sum(row["incidents"] for row in counts(found)) == len(found)


def test_runs_are_put_together_newest_first_and_a_broken_one_hides_no_other(tmp_path: Path) -> None:
    class Broken(MemoryStore):
        def get(self, path: str) -> bytes | None:
            raise StoreError("no such disk")

    for name, zero in (("old", 1_000_000.0), ("new", 2_000_000.0)):
        write_run(lost(Stream(zero=zero).supervisor(0, "RunCreated", name=name)).events, tmp_path / name)
    stores = [(name, partial(open_store, str(tmp_path), name)) for name in ("old", "new")]

    def nowhere() -> MemoryStore:
        raise UsageError("no such kind of URL")

    told = audit.audit([("gone", Broken), ("odd", nowhere), *stores], since=0.0)
    assert [i["run"] for i in told["incidents"]] == ["new", "old"]
    assert told["problems"] == ["gone: no such disk", "odd: no such kind of URL"]
    assert [i["run"] for i in audit.audit(stores, since=1_500_000.0)["incidents"]] == ["new"]


def test_the_command_prints_incidents_and_counts_and_has_data_for_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEADYRAY_HOME", str(tmp_path))
    monkeypatch.delenv("STEADYRAY_RUNS", raising=False)
    stream = lost(Stream(zero=time.time() - 3600).supervisor(0, "RunCreated"), cause="Observes", by_hand="x")
    write_run(stream.events, tmp_path / "runs" / "r")
    assert cli.run(["audit", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"since", "incidents", "counts", "withheld", "problems"}
    assert set(told["incidents"][0]) == set(Entry.__dataclass_fields__)
    assert cli.run(["audit", "r", "--since", "2h"]) == 0
    assert "1 incidents, 1 withheld" in capsys.readouterr().out
    assert cli.run(["audit", "--since", "30m"]) == 0
    assert "nothing went wrong" in capsys.readouterr().err
    far = tmp_path / "runs" / "r" / "events" / "driver-0001-x" / "00000099.json"
    far.parent.mkdir(parents=True, exist_ok=True)
    far.write_text(
        json.dumps({"time": 1e300, "kind": "ActionTaken", "writer": "x", "seq": 99, "incident": "i"})
    )
    assert cli.run(["audit"]) == 0
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "odd.json").write_text('{"storage": "ftp://nowhere"}')
    assert cli.run(["audit", "--since", "1s"]) == 0
    assert "odd: " in (told := capsys.readouterr().err)
    assert "nothing went wrong" not in told


@pytest.mark.parametrize(("word", "value"), [("90s", 90), ("30m", 1800), ("12h", 43200), ("7d", 604800)])
def test_a_span_of_time_is_a_number_and_a_letter(word: str, value: float) -> None:
    assert seconds(word) == value


@pytest.mark.parametrize("word", ["", "7", "d", "-1d", "7 days"])
def test_another_span_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        seconds(word)
