"""A step that fails half-way leaves the state of the step before, or says that it cannot be trusted."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from steadyray.sampler import Sampler
from steadyray.state import ShardedStateError, State, clone, seed_step
from torch import nn


class ArrayAverage:
    """A user's part whose state is an array and not a tensor."""

    def __init__(self) -> None:
        self.mean = np.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def forward(net: nn.Module) -> torch.Tensor:
    return net(torch.randn(8, 4)).sum()


def same(one: Any, other: Any) -> bool:
    return str(one) == str(other)


def test_buffers_that_moved_in_the_forward_pass_are_put_back() -> None:
    net = model()
    state = State(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    before = clone(state.state_dict())
    state.begin_step()
    forward(net).backward()
    assert not same(before, state.state_dict()), "BatchNorm moves its means in the forward pass"
    state.roll_back()
    assert state.clean
    assert same(before, state.state_dict())


def test_a_step_torn_behind_the_only_optimiser_is_not_trusted() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = State(model=net, optimizer=optimizer)
    state.begin_step()
    forward(net).backward()
    optimizer.step()
    state.roll_back()
    assert not state.clean
    state.load_state_dict(clone(State(model=model(), optimizer=optimizer).state_dict()))
    assert state.clean, "a received state is whole again"


def test_a_committed_step_is_not_rolled_back() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = State(model=net, optimizer=optimizer)
    state.begin_step()
    forward(net).backward()
    optimizer.step()
    state.commit_step()
    after = clone(state.state_dict())
    state.roll_back()
    assert (state.clean, state.step) == (True, 1)
    assert same(after, state.state_dict())


def test_with_two_optimisers_everything_is_put_back_after_the_first_has_stepped() -> None:
    net, other = model(), model()
    first = torch.optim.Adam(net.parameters(), lr=0.1)
    second = torch.optim.Adam(other.parameters(), lr=0.1)
    average, sampler = ArrayAverage(), Sampler(8, 4, steps=9)
    state = State(net=net, other=other, first=first, second=second, average=average, sampler=sampler)
    assert state.copy_steps
    forward(net).backward()
    first.step()  # so that Adam has a state to be put back
    before = clone(state.state_dict())
    state.begin_step()
    forward(net).backward()
    first.step()
    average.mean += 1
    sampler.position += 1
    assert not same(before, state.state_dict())
    state.roll_back()
    assert state.clean
    assert same(before, state.state_dict())


def test_the_first_optimiser_of_a_step_waits_for_the_collectives_and_changes_nothing_if_they_fail() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = State(model=net, optimizer=optimizer)
    state.begin_step()
    before = clone(state.state_dict()["parts"]["optimizer"])
    forward(net).backward()

    def fail() -> None:
        raise RuntimeError("Connection closed by peer")

    state.before_update = fail
    weights = [p.detach().clone() for p in net.parameters()]
    with pytest.raises(RuntimeError, match="closed by peer"):
        optimizer.step()
    state.roll_back()
    assert state.clean
    assert all(torch.equal(now, then) for now, then in zip(net.parameters(), weights, strict=True))
    assert same(before, state.state_dict()["parts"]["optimizer"])


def test_a_copy_shares_nothing_with_the_state() -> None:
    net, average = model(), ArrayAverage()
    state = State(model=net, average=average)
    copied = clone(state.state_dict(), device="cpu")
    text = str(copied)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.add_(1)
    average.mean += 1
    assert str(copied) == text


def test_parts_of_another_training_are_refused_by_name() -> None:
    saved = State(model=model(), ema=model()).state_dict()
    net = model()
    state = State(model=net, sampler=Sampler(8, 4, steps=1))
    with pytest.raises(ValueError, match=r"missing \['sampler'\], unknown \['ema'\]"):
        state.load_state_dict(saved)


def test_a_part_without_state_dict_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="config has no state_dict/load_state_dict: dict"):
        State(config={})  # type: ignore[arg-type]


@pytest.fixture
def group_of_one() -> Any:
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_parameters_that_fsdp_has_sharded_are_refused_by_name(group_of_one: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = nn.Linear(4, 4)
    fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ShardedStateError, match=r"model\.weight is sharded \(.*DTensor"):
        State(model=net)


def test_an_optimiser_that_shards_its_state_is_refused(group_of_one: None) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model().parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ShardedStateError, match=r"optimizer is sharded \(ZeroRedundancyOptimizer\)"):
        State(optimizer=optimizer)


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(1)), float(np.random.rand()), random.random()


def test_the_random_numbers_of_a_step_do_not_depend_on_what_was_drawn_before() -> None:
    seed_step(0, 7, 1)
    first = drawn()
    for _ in range(5):
        drawn()
    seed_step(0, 8, 1)
    drawn()
    seed_step(0, 7, 1)
    assert drawn() == first


@pytest.mark.parametrize("other", [(1, 7, 1), (0, 8, 1), (0, 7, 0)], ids=["seed", "step", "rank"])
def test_another_seed_step_or_rank_draws_other_numbers(other: tuple[int, int, int]) -> None:
    seed_step(0, 7, 1)
    first = drawn()
    seed_step(*other)
    assert all(one != two for one, two in zip(first, drawn(), strict=True))


class Counter(nn.Module):
    """A module that puts a new tensor where its buffer was, as some normalisations do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        return x * self.weight


def test_a_buffer_that_was_assigned_anew_is_put_back() -> None:
    net = Counter()
    state = State(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    state.begin_step()
    net(torch.ones(1))
    state.roll_back()
    assert float(net.seen) == 0.0
    assert "seen" in dict(net.named_buffers())


def test_gradients_of_a_torn_step_are_not_added_to_the_step_done_again() -> None:
    net = model()
    state = State(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    state.begin_step()
    forward(net).backward()
    state.roll_back()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_schedule_that_moved_before_the_failure_is_put_back() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    state = State(model=net, optimizer=optimizer, schedule=schedule)
    state.begin_step()
    optimizer.step()
    schedule.step()
    state.commit_step()
    state.begin_step()
    schedule.step()
    state.roll_back()
    assert state.clean
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert schedule.last_epoch == 1


def test_a_saved_state_of_another_shape_is_named_and_not_taken_for_a_lost_peer() -> None:
    state = State(model=nn.Linear(4, 1))
    saved = {"step": 3, "parts": {"model": nn.Linear(5, 1).state_dict()}}
    with pytest.raises(ValueError, match="the saved model does not fit this training"):
        state.load_state_dict(saved)
