"""The table of states has no trap, and ages are taken from one clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steadyray.contract import Progress

from ops.policy.lifecycle import TRANSITIONS, leavable, legal, reachable
from ops.policy.model import FINAL, Budgets, PastAction, RunState
from ops.policy.progress import Watch, hung, strikes


def test_every_state_can_be_reached_and_every_unfinished_one_can_be_left() -> None:
    assert reachable() == frozenset(RunState)
    assert leavable() == frozenset(RunState)


def test_every_move_has_a_remark_and_success_is_final() -> None:
    assert all(TRANSITIONS.values())
    assert not [b for a, b in TRANSITIONS if a is RunState.SUCCEEDED]
    assert all(b is RunState.PENDING for a, b in TRANSITIONS if a in FINAL)


@pytest.mark.parametrize("state", list(RunState))
def test_staying_is_always_legal(state: RunState) -> None:
    assert legal(state, state)


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from("ab")), min_size=1))
def test_an_age_starts_at_a_change_and_is_never_negative(looks: list[tuple[float, str]]) -> None:
    watch, now, last, changed = Watch(), 0.0, "", 0.0
    for step, value in looks:
        now += step
        watch = watch.observe(now, x=value)
        if value != last:
            last, changed = value, now
        assert watch.age("x", now) == pytest.approx(now - changed)
        assert watch.age_of("x", "other", now) == 0.0


PATIENCE = [
    ("train", 0.1, 59, False),
    ("train", 0.1, 61, True),
    ("train", 10.0, 61, False),
    ("train", 10.0, 201, True),
    ("train", None, 599, False),
    ("train", None, 601, True),
    ("eval", 0.1, 1799, False),
    ("eval", 0.1, 1801, True),
]


@pytest.mark.parametrize(("phase", "step_seconds", "silence", "expected"), PATIENCE)
def test_the_patience_grows_with_the_step_and_excuses_named_phases(
    phase: str, step_seconds: float | None, silence: float, expected: bool
) -> None:
    seen = Progress(step=1, step_seconds=step_seconds, phase=phase)
    assert hung(seen, silence, silence, Budgets()) is expected


@pytest.mark.parametrize(
    ("steps", "best", "expected"),
    [([], 0, 1), ([], 5, 0), ([0], 0, 2), ([5], 5, 1), ([5, 5], 5, 2), ([5, 9], 9, 1), ([5, 5, 9], 12, 0)],
)
def test_strikes_count_attempts_in_a_row_without_a_new_step(
    steps: list[int], best: int, expected: int
) -> None:
    history = tuple(
        PastAction(f"s{n}-1", 1, n, "Resubmit", "NodeLost", True, s) for n, s in enumerate(steps, 1)
    )
    assert strikes(history, best_step=best) == expected
