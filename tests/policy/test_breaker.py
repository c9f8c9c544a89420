"""The fleet's breaker: what is counted, when it opens, and that only a person closes it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.adapters.fakes import FakeClock, MemoryStore
from ops.errors import StoreError
from ops.fleet import BREAKER, Fleet
from ops.policy.breaker import KEPT_WINDOWS, SKEW_SECONDS, Limits, Mark, count

LIMITS = Limits(acts=3, window_seconds=600.0)
NOW = 1_000_000.0
HOUR = 3600.0


@pytest.mark.parametrize(
    ("ages", "acts", "opens", "old", "adrift"),
    [
        ((), 0, False, 0, 0),
        ((0, 1, 2), 3, False, 0, 0),
        ((0, 1, 2, 600), 4, True, 0, 0),
        ((0, 1, 2, 601), 3, False, 0, 0),
        ((0, 601 * KEPT_WINDOWS), 1, False, 1, 0),
        ((0, -SKEW_SECONDS), 2, False, 0, 0),
        ((0, 1, 2, -HOUR), 4, True, 0, 1),
        ((None, None), 2, False, 0, 2),
    ],
)
def test_marks_of_the_window_count_and_those_of_the_future_as_now(
    ages: tuple[float | None, ...], acts: int, opens: bool, old: int, adrift: int
) -> None:
    marks = [Mark(str(n), None if age is None else NOW - age) for n, age in enumerate(ages)]
    found = count(marks, NOW, LIMITS)
    assert (found.acts, found.opens, len(found.old), len(found.adrift)) == (acts, opens, old, adrift)


@given(st.lists(st.floats(-1e7, 1e7)), st.floats(-1e7, 1e7))
def test_no_clock_makes_a_mark_that_counts_vanish(ages: list[float], jump: float) -> None:
    found = count([Mark(str(n), NOW - age) for n, age in enumerate(ages)], NOW + jump, LIMITS)
    assert 0 <= found.acts <= len(ages)
    assert not set(found.old) & set(found.adrift)
    assert found.opens == (found.acts > LIMITS.acts)


@dataclass
class Yard:
    """A fleet in memory."""

    store: MemoryStore = field(default_factory=MemoryStore)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.fleet = Fleet(lambda: self.store, self.clock, limits=LIMITS)

    def act(self, name: str) -> dict[str, Any] | None:
        return self.fleet.mark(name, {"run": name, "action": "Resubmit", "who": "supervisor-1"})

    def marks(self) -> list[str]:
        return [path for path in self.store.files if path.startswith("acts/")]


def test_the_act_beyond_the_limit_opens_it_and_is_not_done() -> None:
    yard = Yard()
    assert [yard.act(f"r{n}") for n in range(3)] == [None, None, None]
    opened = yard.act("r3")
    assert opened is not None
    assert "4 automated acts in 10 minutes" in opened["why"]
    assert (opened["run"], opened["who"]) == ("r3", "supervisor-1")
    assert yard.act("r4") is not None, "it stays open"


def test_time_alone_does_not_close_it() -> None:
    yard = Yard()
    for n in range(4):
        yard.act(f"r{n}")
    yard.clock.sleep(24 * HOUR)
    assert yard.act("later") is not None


def test_a_person_closes_it_and_acts_count_from_zero() -> None:
    yard = Yard()
    for n in range(4):
        yard.act(f"r{n}")
    was = yard.fleet.close("ann@desk", "the switch is repaired")
    assert was is not None
    assert yard.fleet.opened() is None
    assert [yard.act(f"r{n}") for n in range(3)] == [None, None, None]
    [closing] = [json.loads(d) for p, d in yard.store.files.items() if p.startswith("closings/")]
    assert (closing["closed_by"], closing["why"]) == ("ann@desk", "the switch is repaired")
    assert closing["breaker"]["run"] == "r3"
    assert yard.fleet.close("ann@desk", "again") is None


def test_the_same_act_begun_again_counts_once() -> None:
    yard = Yard()
    for _ in range(10):
        assert yard.act("r1") is None
    assert len(yard.marks()) == 1


def test_old_marks_are_removed_by_whoever_counts() -> None:
    yard = Yard()
    yard.act("r1")
    yard.clock.sleep(LIMITS.window_seconds * KEPT_WINDOWS + 1)
    yard.act("r2")
    assert yard.marks() == ["acts/r2.json"]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_jumped_neither_opens_it_for_ever_nor_hides_a_storm(jump: float) -> None:
    yard = Yard()
    for n in range(2):
        yard.act(f"before{n}")
    yard.clock.sleep(jump)
    assert yard.act("between") is None
    assert (yard.fleet.acts().acts == 3) == (jump < 0), "marks of the future count as now"
    yard.clock.sleep(LIMITS.window_seconds + 1)
    assert yard.act("after") is None
    assert yard.fleet.acts().acts == 1, "marks of the future age from the moment they were seen"
    assert [yard.act(f"storm{n}") is None for n in range(3)] == [True, True, False]


def test_a_damaged_breaker_is_an_open_one_and_a_damaged_mark_an_act_of_now() -> None:
    yard = Yard()
    yard.store.files["acts/x.json"] = b"{"
    yard.act("r1")
    assert yard.fleet.acts().acts == 2
    yard.store.files[BREAKER] = b"{"
    assert yard.act("r2") is not None
    assert yard.fleet.close("ann", "") is not None
    assert yard.fleet.opened() is None


def test_a_storage_that_refuses_is_told_as_such() -> None:
    class Refusing(MemoryStore):
        def create(self, path: str, data: bytes) -> bool:
            raise StoreError("no")

    with pytest.raises(StoreError):
        Fleet(Refusing, FakeClock(), limits=LIMITS).mark("r", {})
