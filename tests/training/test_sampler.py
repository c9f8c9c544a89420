"""The data of a step is the same at any world size, and after any resumption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steadyray.sampler import Sampler, share

CHEAP = settings(max_examples=60, deadline=None)


@st.composite
def samplers(draw: st.DrawFn) -> Sampler:
    batch = draw(st.integers(1, 40))
    samples = draw(st.integers(batch, 200))
    return Sampler(samples, batch, epochs=draw(st.integers(1, 4)), seed=draw(st.integers(0, 3)))


def walk(sampler: Sampler, steps: int) -> list[list[int]]:
    """The global batches of so many steps."""
    batches = []
    for _ in range(steps):
        batches.append(sampler.batch().tolist())
        sampler.position += 1
    return batches


@CHEAP
@given(samplers(), st.integers(1, 9))
def test_the_shares_of_any_world_size_are_the_global_batch_in_order(sampler: Sampler, world: int) -> None:
    batch = sampler.batch()
    shares = [share(batch, rank, world) for rank in range(world)]
    assert np.concatenate(shares).tolist() == batch.tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@CHEAP
@given(samplers(), st.data())
def test_a_resumed_sampler_goes_on_at_the_exact_next_sample(sampler: Sampler, data: st.DataObject) -> None:
    fields: dict[str, Any] = {"epochs": sampler.epochs, "seed": sampler.seed}
    whole = walk(Sampler(sampler.samples, sampler.global_batch, **fields), sampler.total_steps)
    before = data.draw(st.integers(0, sampler.total_steps))
    first = walk(sampler, before)
    resumed = Sampler(sampler.samples, sampler.global_batch, **fields)
    resumed.load_state_dict(sampler.state_dict())
    assert first + walk(resumed, resumed.total_steps - before) == whole


@CHEAP
@given(samplers())
def test_an_epoch_sees_no_sample_twice(sampler: Sampler) -> None:
    seen = [index for batch in walk(sampler, sampler.steps_per_epoch) for index in batch]
    assert len(set(seen)) == len(seen) == sampler.steps_per_epoch * sampler.global_batch
    assert sampler.epoch == 1
    assert sampler.starts_epoch


def test_each_epoch_is_shuffled_anew_and_the_same_in_every_process() -> None:
    epochs = walk(Sampler(64, 64, epochs=3), 3)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs == walk(Sampler(64, 64, epochs=3), 3)
    assert epochs != walk(Sampler(64, 64, epochs=3, seed=1), 3)


def test_steps_may_end_in_the_middle_of_an_epoch() -> None:
    assert Sampler(64, 16, steps=7).total_steps == 7
    assert len(walk(Sampler(64, 16, steps=7), 7)) == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"samples": 10, "global_batch": 11, "steps": 1}, "must be between 1 and the number of samples"),
        ({"samples": 10, "global_batch": 0, "steps": 1}, "must be between 1 and the number of samples"),
        ({"samples": 10, "global_batch": 5}, "either epochs or steps"),
        ({"samples": 10, "global_batch": 5, "epochs": 1, "steps": 1}, "either epochs or steps"),
    ],
    ids=["fewer samples than a batch", "an empty batch", "no length", "two lengths"],
)
def test_a_sampler_that_makes_no_sense_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(**given)


@pytest.mark.parametrize("changed", [{"seed": 1}, {"global_batch": 8}])
def test_a_position_of_another_order_is_refused_with_both_values(changed: dict[str, int]) -> None:
    saved = Sampler(64, 16, steps=9, seed=0).state_dict()
    other: dict[str, Any] = {"samples": 64, "global_batch": 16, "steps": 9, "seed": 0, **changed}
    [key] = changed
    with pytest.raises(ValueError, match=f"{key}={saved[key]}, this run has {changed[key]}"):
        Sampler(**other).load_state_dict(saved)
