"""The ledger: exact numbers for made-up runs, and what holds for any stream of events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steadyray.contract import Event, EventKind
from streams import SUPERVISOR, Stream, eventful

from ops.policy.ledger import Category, Ledger, ledger
from ops.report_words import story


def seconds(book: Ledger) -> dict[str, float]:
    return {c.value: pytest.approx(s) for c, s in book.seconds.items() if s > 1e-9}


def quiet() -> Stream:
    s = Stream().supervisor(0, "RunCreated").submitted(1, 3)
    return s.driver(3.5, "DriverStarted").formed(4, 2).steps(5, 15, 0, 10)


def test_a_run_without_faults_is_start_up_steps_and_closing() -> None:
    book = ledger(quiet().driver(15.5, "TrainingFinished", step=10).finished(16).events)
    assert seconds(book) == {"start-up": 5, "productive": 10, "other": 1}
    assert (book.steps, book.steps_redone, book.goodput) == (10, 0, pytest.approx(10 / 16))
    assert book.incidents == ()
    assert book.worker_seconds[Category.PRODUCTIVE] == pytest.approx(20)


def test_every_second_of_an_eventful_run_has_its_place() -> None:
    book = ledger(eventful().events)
    assert seconds(book) == {
        "start-up": 7,
        "productive": 24,
        "saving": 1,
        "detection": 2.1,
        "restart": 6.6,
        "redone": 5.3,
        "other": 2,
    }
    assert book.goodput == pytest.approx(0.5)
    assert (book.steps, book.steps_done, book.steps_redone) == (250, 300, 50)


def test_each_incident_is_charged_with_what_it_cost() -> None:
    hot, driver = ledger(eventful().events).incidents
    assert hot.seconds == {Category.DETECTION: pytest.approx(0.1), Category.RESTART: pytest.approx(0.6)}
    assert (hot.recovery_seconds, hot.steps_lost) == (pytest.approx(0.8), 0)
    assert driver.seconds == {
        Category.REDONE: pytest.approx(5.3),
        Category.DETECTION: pytest.approx(2),
        Category.RESTART: pytest.approx(6),
    }
    # last good step at 27.7 s; step 201 is done at 41.1 s, after the steps 151 to 200 were done again
    assert (driver.recovery_seconds, driver.steps_lost) == (pytest.approx(13.4), 50)
    assert (driver.incident.depth, driver.incident.action) == ("new-attempt", "Resubmit")


def test_mean_recovery_runs_from_the_last_good_step_to_the_next_new_one() -> None:
    assert ledger(eventful().events).mean_recovery_seconds == pytest.approx((0.8 + 13.4) / 2)


def test_a_head_that_was_lost_beside_the_training_is_told_and_costs_nothing() -> None:
    s = eventful()
    s.supervisor(43, "ClusterSilent", start=37, end=43, head_replaced=True, from_step=160, to_step=220)
    book = ledger(s.events)
    assert seconds(book) == seconds(ledger(eventful().events))
    assert book.mean_recovery_seconds == ledger(eventful().events).mean_recovery_seconds
    lost = book.incidents[-1]
    assert (lost.incident.failure_class, lost.back_seconds, lost.seconds) == ("HeadLost", 6, {})
    assert "(60 steps meanwhile)" in story(lost, book.timeline.start)


def test_waiting_for_capacity_is_told_apart_from_start_up() -> None:
    s = Stream().supervisor(0, "RunCreated").supervisor(1, "AttemptClaimed")
    s.attempt = 1
    s.supervisor(6, "Waiting", reason="CapacityMissing", since=2).supervisor(
        9, "Waiting", reason="Queued", since=2
    )
    s.supervisor(12, "AttemptRunning").formed(13, 1).steps(14, 20, 0, 6).finished(20)
    book = ledger(s.events)
    assert seconds(book) == {"start-up": 4, "waiting": 10, "productive": 6}


def test_a_fault_while_the_first_is_repaired_takes_over_the_clock() -> None:
    s = quiet()
    s.driver(15.2, "RankLost", incident="a", rank=0, detected=15.2, failure_class="WorkerCrash")
    s.driver(17, "RankLost", incident="b", rank=1, detected=17, failure_class="WorkerCrash")
    s.driver(19, "Recovered", incident="b", depth="reload", seconds_detection=0.5)
    s.formed(18, 2, from_step=10).steps(19, 29, 10, 20).finished(29)
    first, second = ledger(s.events).incidents
    assert first.seconds == {Category.DETECTION: pytest.approx(0.2), Category.RESTART: pytest.approx(1.3)}
    assert second.seconds == {Category.DETECTION: pytest.approx(0.5), Category.RESTART: pytest.approx(2)}


def test_steps_known_from_the_progress_file_alone_count_as_done() -> None:
    s = quiet().supervisor(17, "AttemptEnded", status="FAILED", step=12)
    s.supervisor(17, "IncidentOpened", incident="s1", failure_class="NodeLost", fault_time=16.5, step=12)
    s.submitted(18, 19).driver(19, "DriverStarted").formed(19, 2, 10).steps(20, 24, 10, 14).finished(24)
    book = ledger(s.events)
    assert book.steps_redone == 2
    assert book.seconds[Category.REDONE] == pytest.approx(2)
    assert book.seconds[Category.PRODUCTIVE] == pytest.approx(10 + 1.5 + 2)


def test_a_checkpoint_beyond_the_last_report_proves_that_the_steps_were_done() -> None:
    s = quiet().supervisor(17, "AttemptEnded", status="FAILED", step=10)
    s.supervisor(17, "IncidentOpened", incident="s1", failure_class="NodeLost", fault_time=16.5, step=10)
    s.submitted(18, 19).driver(19, "DriverStarted").formed(19, 2, 13).steps(20, 24, 13, 17).finished(24)
    book = ledger(s.events)
    assert (book.steps, book.steps_redone) == (17, 0)
    assert book.seconds[Category.PRODUCTIVE] == pytest.approx(10 + 1.5 + 4)


def test_work_that_nobody_saw_before_the_fault_is_lost_work() -> None:
    s = quiet().supervisor(17, "AttemptEnded", status="FAILED")
    s.supervisor(17, "IncidentOpened", incident="s1", failure_class="NodeLost", fault_time=16.5)
    s.submitted(18, 19).driver(19, "DriverStarted").formed(19, 2, 10).steps(20, 24, 10, 14).finished(24)
    (cost,) = ledger(s.events).incidents
    assert cost.seconds[Category.REDONE] == pytest.approx(1.5)
    assert cost.steps_lost == 0


def test_a_run_that_ends_at_a_user_error_has_no_restart() -> None:
    s = quiet().supervisor(16, "AttemptEnded", status="FAILED", failure_class="UserError", step=10)
    s.supervisor(17, "IncidentOpened", incident="s1", failure_class="UserError", fault_time=15.5, step=10)
    s.supervisor(17, "ActionTaken", incident="s1", action="Stop", reason="UserError")
    book = ledger(s.finished(18, "Failed").events)
    assert seconds(book) == {"start-up": 5, "productive": 10, "redone": 0.5, "detection": 0.5, "other": 2}
    assert book.incidents[0].recovery_seconds is None


def test_named_phases_and_growing_are_no_training() -> None:
    s = quiet().driver(18, "Phase", name="eval", start=15, end=18)
    s.formed(18.5, 3, 10, "peer").steps(19, 29, 10, 20).finished(29)
    assert seconds(ledger(s.events)) == {"start-up": 5, "productive": 20, "other": 3, "restart": 1}


def test_time_between_a_stop_and_a_resume_is_outside_of_goodput() -> None:
    s = quiet().finished(15, "Stopped").submitted(115, 116).driver(116, "DriverStarted")
    s.formed(117, 2, 10).steps(118, 128, 10, 20).finished(128)
    book = ledger(s.events)
    assert seconds(book) == {"start-up": 8, "productive": 20, "stopped": 100}
    assert book.goodput == pytest.approx(20 / 28)


def test_a_plain_script_is_unmeasured_and_has_no_goodput() -> None:
    s = Stream().supervisor(0, "RunCreated").submitted(1, 2)
    s.supervisor(10, "AttemptEnded", status="FAILED")
    s.supervisor(10, "IncidentOpened", incident="s1", failure_class="WorkerCrash", fault_time=9)
    s.submitted(12, 13).supervisor(20, "AttemptEnded", status="SUCCEEDED").finished(20)
    book = ledger(s.events)
    assert seconds(book) == {"start-up": 2, "unmeasured": 14, "detection": 1, "restart": 3}
    assert book.goodput is None


@pytest.mark.parametrize("skew", [-4.0, -0.5, 0.5, 4.0])
def test_a_drivers_wrong_clock_changes_no_duration_inside_its_attempt(skew: float) -> None:
    """The attempt fills its window, so that any skew puts an effect before its cause."""
    s = Stream().supervisor(0, "RunCreated")
    s.attempt = 1
    s.supervisor(1, "AttemptClaimed").supervisor(1, "AttemptRunning")
    s.driver(1, "DriverStarted").formed(1, 2).steps(2, 12, 0, 10).driver(12, "TrainingFinished")
    s.supervisor(12, "AttemptEnded", status="SUCCEEDED").finished(13)
    shifted = [_shift(e, skew) if e.writer != SUPERVISOR else e for e in s.events]
    assert seconds(ledger(shifted)) == {"start-up": 2, "productive": 10, "other": 1}


def _shift(event: Event, skew: float) -> Event:
    data = {k: v + skew if k in ("start", "end") else v for k, v in event.data.items()}
    return replace(event, time=event.time + skew, data=data)


def test_a_driver_that_lived_on_for_minutes_is_no_clock_error() -> None:
    s = quiet().supervisor(15, "AttemptEnded", status="FAILED").steps(15, 75, 10, 70).finished(80)
    assert ledger(s.events).seconds[Category.PRODUCTIVE] == pytest.approx(70)


def test_a_training_without_a_supervisor_ends_with_the_drivers_word() -> None:
    s = Stream(attempt=1).driver(0, "DriverStarted").formed(1, 1).steps(2, 12, 0, 10)
    book = ledger(s.driver(13, "TrainingFinished", step=10).events)
    assert (book.timeline.state, book.timeline.finished) == ("Succeeded", True)
    assert seconds(book) == {"start-up": 2, "productive": 10, "other": 1}


def test_a_group_that_grew_is_no_incident() -> None:
    s = quiet().formed(15.5, 3, 10, "peer")
    s.driver(16.2, "Recovered", incident="0001-001", depth="hot", lost=[], steps_redone=0,
             seconds_detection=0, last_step_time=15, first_new_step_time=16.1)  # fmt: skip
    book = ledger(s.steps(16, 26, 10, 20).finished(26).events)
    assert book.incidents == ()
    assert seconds(book) == {"start-up": 5, "productive": 20, "restart": 1}


def test_a_rank_that_proves_to_be_only_slow_makes_the_hang_before_a_false_alarm() -> None:
    s = quiet().driver(20, "RankLost", incident="0001-001", rank=1, failure_class="Hang", detected=20)
    s.formed(20.2, 2, 10, "peer").steps(20.5, 30, 10, 20)
    s.driver(31, "Recovered", incident="0001-slow", depth="hot", false_alarm=True, lost=[-1])
    (cost,) = ledger(s.finished(32).events).incidents
    assert (cost.incident.id, cost.incident.false_alarm) == ("0001-001", True)


def test_a_silent_control_plane_is_not_counted_as_waiting() -> None:
    s = quiet().supervisor(15.1, "Waiting", reason="ControlPlaneBlind", since=12).steps(15, 25, 10, 20)
    assert seconds(ledger(s.finished(25).events)) == {"start-up": 5, "productive": 20}


def test_the_best_step_of_earlier_attempts_is_not_taken_for_work_of_this_one() -> None:
    s = quiet().supervisor(16, "AttemptEnded", status="FAILED", step=10)
    s.supervisor(16, "IncidentOpened", incident="s1", failure_class="NodeLost", fault_time=15, step=10)
    s.submitted(17, 18).driver(18, "DriverStarted").formed(19, 2, 0).steps(20, 25, 0, 5)
    s.supervisor(28, "AttemptEnded", status="FAILED", step=6)
    s.supervisor(28, "IncidentOpened", incident="s2", failure_class="NodeLost", fault_time=27, step=10)
    book = ledger(s.finished(29, "Failed").events)
    assert book.seconds[Category.PRODUCTIVE] == pytest.approx(10)
    assert book.incidents[1].seconds[Category.REDONE] == pytest.approx(2)


def test_nothing_at_all_is_an_empty_ledger() -> None:
    book = ledger([])
    assert (book.total_seconds, book.goodput, book.slices) == (0, None, ())


def test_the_order_of_reading_does_not_matter() -> None:
    events = eventful().events
    assert ledger(reversed(events)).seconds == ledger([*events, *events]).seconds == ledger(events).seconds


# --- any stream --------------------------------------------------------------------------------------
TIMES = st.floats(min_value=-20, max_value=120, allow_nan=False)
FIELDS = {
    **dict.fromkeys(("start", "end", "detected", "fault_time", "since"), TIMES),
    **dict.fromkeys(("last_step_time", "first_new_step_time"), TIMES),
    **dict.fromkeys(("from_step", "to_step", "step", "last_step", "steps_redone"), st.integers(-2, 60)),
    **dict.fromkeys(("save_seconds", "seconds_detection", "waited_seconds"), st.floats(-1, 30)),
    "world_size": st.integers(-1, 4),
    "name": st.sampled_from(["eval", "save", ""]),
    "failure_class": st.sampled_from(["Hang", "DriverLost", "NoSuchClass"]),
    "losses": st.lists(st.tuples(st.integers(0, 60), st.floats()), max_size=3),
    "depth": st.sampled_from(["hot", "reload"]),
}
DAMAGE = st.sampled_from([None, "x", float("nan"), float("inf"), [], True])
DATA = st.fixed_dictionaries({}, optional={k: v | DAMAGE if k != "losses" else v for k, v in FIELDS.items()})


@st.composite
def any_event(draw: st.DrawFn) -> Event:
    attempt = draw(st.integers(0, 3))
    writer = draw(
        st.sampled_from(["supervisor-a-1-00000000", "supervisor-b-2-11111111", f"driver-{attempt:04d}-x"])
    )
    data: dict[str, Any] = draw(DATA)
    return Event(
        time=draw(TIMES),
        kind=draw(st.sampled_from(list(EventKind))),
        writer=writer,
        seq=draw(st.integers(1, 10_000)),
        attempt=attempt,
        generation=draw(st.integers(0, 3)),
        incident=draw(st.sampled_from(["", "a", "b", "c"])),
        data=data,
    )


def assert_sound(book: Ledger) -> None:
    total = book.total_seconds
    assert total >= 0
    assert sum(book.seconds.values()) == pytest.approx(total, abs=1e-6)
    assert all(s >= 0 for s in book.seconds.values())
    assert all(s >= 0 for s in book.worker_seconds.values())
    assert book.goodput is None or 0 <= book.goodput <= 1
    assert 0 <= book.steps_redone <= book.steps_done
    edges = [book.timeline.start, *(s.end for s in book.slices)] if book.slices else []
    assert [s.start for s in book.slices] == edges[:-1]
    for cost in book.incidents:
        assert all(s >= 0 for s in cost.seconds.values())
        assert cost.incident.fault_time <= cost.incident.detected
        assert cost.steps_lost >= 0
        assert cost.recovery_seconds is None or cost.recovery_seconds >= 0
    charged = sum(sum(cost.seconds.values()) for cost in book.incidents)
    assert charged <= total + 1e-6


@settings(max_examples=200, deadline=None)
@given(st.lists(any_event(), max_size=40))
def test_categories_add_up_to_the_wall_time_whatever_the_events_are(events: list[Event]) -> None:
    assert_sound(ledger(events))


@settings(max_examples=100, deadline=None)
@given(
    lost=st.sets(st.integers(0, len(eventful().events) - 1)),
    skews=st.tuples(st.floats(-8, 8), st.floats(-8, 8)),
    order=st.randoms(use_true_random=False),
)
def test_missing_events_and_skewed_clocks_give_no_negative_numbers(
    lost: set[int], skews: tuple[float, float], order: Any
) -> None:
    events = [e for i, e in enumerate(eventful().events) if i not in lost]
    moved = [_shift(e, skews[e.attempt - 1]) if e.writer != SUPERVISOR else e for e in events]
    order.shuffle(moved)
    assert_sound(ledger(moved))
