"""The fleet's breaker: what is counted, when it opens, and that only a person closes it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.adapters.fakes import FakeClock, MemoryStore
from ops.errors import StoreError
from ops.fleet import BREAKER, Fleet, Open
from ops.policy.breaker import KEPT_WINDOWS, SKEW_SECONDS, Limits, Mark, count

LIMITS = Limits(acts=3, window_seconds=600.0)
NOW = 1_000_000.0
HOUR = 3600.0


@pytest.mark.parametrize(
    ("ages", "acts", "opens", "old"),
    [
        ((), 0, False, 0),
        ((0, 1, 2), 3, False, 0),
        ((0, 1, 2, 600), 4, True, 0),
        ((0, 1, 2, 601), 3, False, 0),
        ((0, 601 * KEPT_WINDOWS), 1, False, 1),
        ((0, -SKEW_SECONDS), 2, False, 0),
        ((0, 1, 2, -HOUR), 3, False, 0),
    ],
)
def test_marks_of_the_window_count_and_those_of_a_clock_that_is_wrong_do_not(
    ages: tuple[float, ...], acts: int, opens: bool, old: int
) -> None:
    marks = [Mark(str(n), str(n), NOW - age) for n, age in enumerate(ages)]
    found = count(marks, NOW, LIMITS)
    assert (found.acts, found.opens, len(found.old)) == (acts, opens, old)


def test_all_that_is_done_about_one_attempt_counts_once() -> None:
    marks = [Mark(str(n), "r-1", NOW - n) for n in range(10)]
    assert count(marks, NOW, LIMITS).acts == 1


@given(st.lists(st.floats(-1e7, 1e7)), st.floats(-1e7, 1e7))
def test_no_jump_of_a_clock_makes_more_acts_than_there_were(ages: list[float], jump: float) -> None:
    found = count([Mark(str(n), str(n), NOW - age) for n, age in enumerate(ages)], NOW + jump, LIMITS)
    assert 0 <= found.acts <= len(ages)
    assert found.acts + len(found.old) <= len(ages)
    assert found.opens == (found.acts > LIMITS.acts)


def test_one_host_whose_clock_is_an_hour_late_does_not_open_it_for_all() -> None:
    """Two acts in each window, all of the future for that host."""
    yard = Yard()
    for n in range(12):
        assert yard.act(f"r{n}") is None
        yard.clock.sleep(LIMITS.window_seconds / 2)
    yard.clock.sleep(-HOUR)
    assert yard.act("late") is None


@dataclass
class Yard:
    """A fleet in memory."""

    store: MemoryStore = field(default_factory=MemoryStore)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.fleet = Fleet(lambda: self.store, self.clock)
        self.fleet.limit(LIMITS)

    def act(self, name: str) -> Open | None:
        return self.fleet.mark(name, {"run": name, "action": "Resubmit", "who": "supervisor-1"})

    def marks(self) -> list[str]:
        return [path for path in self.store.files if path.startswith("acts/")]


def test_the_act_beyond_the_limit_opens_it_and_is_not_done() -> None:
    yard = Yard()
    assert [yard.act(f"r{n}") for n in range(3)] == [None, None, None]
    opened = yard.act("r3")
    assert opened is not None
    assert "automated acts on 4 attempts in 10 minutes" in opened.why
    assert (opened.run, opened.who) == ("r3", "supervisor-1")
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
    [path] = yard.marks()
    assert path.startswith("acts/r2@")


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_that_jumped_neither_opens_it_nor_hides_a_storm(jump: float) -> None:
    yard = Yard()
    for n in range(3):
        yard.act(f"before{n}")
    yard.clock.sleep(jump)
    assert [yard.act(f"storm{n}") is None for n in range(4)] == [True, True, True, False]


def test_a_damaged_breaker_is_an_open_one_and_what_is_no_mark_counts_nothing() -> None:
    yard = Yard()
    yard.store.files["acts/x.json"] = yard.store.files["acts/y@never.json"] = b"{"
    yard.act("r1")
    assert yard.fleet.acts().acts == 1
    for content in (b"{", b"[]", b'{"why": 3, "time": []}'):
        yard.store.files[BREAKER] = content
        assert yard.act("r2") is not None
        assert yard.fleet.close("ann", "") is not None
        assert yard.fleet.opened() is None


def test_an_act_reads_no_mark_but_lists_them() -> None:
    """The run waits for it: on a bucket each read would take as long as the whole list."""

    class Counting(MemoryStore):
        def get(self, path: str) -> bytes | None:
            read.append(path)
            return super().get(path)

    read: list[str] = []
    yard = Yard(Counting())
    yard.fleet.limit(Limits(1000, 600.0))
    for n in range(100):
        yard.act(f"r{n}")
    read.clear()
    yard.act("one more")
    assert not [path for path in read if path.startswith("acts/")]
    assert len(read) <= 3


def test_a_person_sets_the_limit_for_all_and_a_damaged_one_is_the_default() -> None:
    yard = Yard()
    yard.fleet.limit(Limits(0, 60.0))
    assert yard.act("r1") is not None
    for content in (b"{", b"[]", b'{"acts": -1, "window_seconds": 5}', b'{"acts": 1, "window_seconds": 0}'):
        yard.store.files["limits.json"] = content
        assert yard.fleet.limits() == Limits()


def test_a_storage_that_refuses_is_told_as_such() -> None:
    class Refusing(MemoryStore):
        def create(self, path: str, data: bytes) -> bool:
            raise StoreError("no")

    with pytest.raises(StoreError):
        Fleet(Refusing, FakeClock()).mark("r", {})
