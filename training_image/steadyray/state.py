"""The state of a training: what a peer hands to a newcomer and what a checkpoint holds.

A step may fail after it has begun to change things: BatchNorm buffers move in the forward pass, the first
of two optimisers may have stepped. `begin_step` keeps what is needed to go back; `roll_back` does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

StateDict = dict[str, Any]


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: Any) -> Any: ...


class ShardedStateError(ValueError):
    """The state is divided over the ranks; a living peer then holds no full copy of it."""


_SHARDED = frozenset(
    {"ShardedTensor", "FlatParameter", "FullyShardedDataParallel", "ZeroRedundancyOptimizer"}
)


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "full_tensor") or type(tensor).__name__ in _SHARDED


class State:
    """Named parts with `state_dict()` and `load_state_dict()`: model, optimiser, scheduler, sampler, EMA …

    `copy_steps` keeps a full copy of the state at the start of each step. It is needed when a collective
    may fail *between* two changes of the state, as with two optimisers; by default it is on exactly then.
    It costs one copy of the state in memory and its time a step.

    Raises TypeError for a part without `state_dict`, ShardedStateError for FSDP or tensor-parallel parts.
    """

    def __init__(self, *, copy_steps: bool | None = None, **parts: Stateful) -> None:
        for name, part in parts.items():
            if not isinstance(part, Stateful):
                raise TypeError(f"{name} has no state_dict/load_state_dict: {type(part).__name__}")
        self.parts = parts
        self.step = 0
        self.clean = True
        self.before_update: Callable[[], None] = lambda: None
        """Called before an optimiser changes anything."""
        self.optimizers = [p for p in parts.values() if isinstance(p, torch.optim.Optimizer)]
        self.copy_steps = len(self.optimizers) > 1 if copy_steps is None else copy_steps
        self._modules = [p for p in parts.values() if isinstance(p, nn.Module)]
        self._copy: StateDict | None = None
        self._before: _Before | None = None
        self._touched = False
        self._refuse_shards()
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(self._on_optimizer_step)

    def _on_optimizer_step(self, *_: Any) -> None:
        # It may raise for a lost peer: before the first optimiser nothing has been changed yet.
        self.before_update()
        self._touched = True

    def _refuse_shards(self) -> None:
        for name, part in self.parts.items():
            sharded = type(part).__name__ if type(part).__name__ in _SHARDED else ""
            if isinstance(part, nn.Module):
                tensors = [*part.named_parameters(), *part.named_buffers()]
                found = [(key, type(t).__name__) for key, t in tensors if _is_sharded(t)]
                name, sharded = (f"{name}.{found[0][0]}", found[0][1]) if found else (name, sharded)
            if sharded:
                raise ShardedStateError(
                    f"{name} is sharded ({sharded}). steadyray.generations works on state that every rank "
                    "holds in full (DDP); sharded state is not supported yet. Keep your own launcher and "
                    "report with steadyray.progress instead"
                )

    # --- one step ---------------------------------------------------------------------------------
    def begin_step(self) -> None:
        self._touched = False
        if self.copy_steps:
            self._copy = clone(self.state_dict())
        else:
            self._before = self._remember()

    def _remember(self) -> _Before:
        """What may change before the first optimiser's step: all but weights and optimiser state."""
        others = {
            name: clone(dict(part.state_dict()))
            for name, part in self.parts.items()
            if not isinstance(part, nn.Module | torch.optim.Optimizer)
        }
        buffers = [
            (owner, name, buffer, buffer.detach().clone())
            for module in self._modules
            for owner in module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
        ]
        groups = [
            (group, {key: value for key, value in group.items() if key != "params"})
            for optimizer in self.optimizers
            for group in optimizer.param_groups
        ]
        return _Before(others, buffers, groups)

    def commit_step(self) -> None:
        self.step += 1
        self._touched, self._copy, self._before = False, None, None

    def roll_back(self) -> None:
        """Undo an unfinished step. `clean` tells afterwards whether this copy can be trusted."""
        if self._copy is not None:
            self.load_state_dict(self._copy)
        elif self._touched:
            self.clean = False
        elif self._before is not None:
            self._before.restore(self.parts)
        # Gradients of the torn step would be added to those of the same step done again.
        for module in self._modules:
            module.zero_grad(set_to_none=True)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._touched, self._copy, self._before = False, None, None

    # --- as a whole -------------------------------------------------------------------------------
    def state_dict(self) -> StateDict:
        parts: StateDict = {name: dict(part.state_dict()) for name, part in self.parts.items()}
        return {"step": self.step, "parts": parts}

    def load_state_dict(self, state: StateDict) -> None:
        missing, unknown = (
            self.parts.keys() - state["parts"].keys(),
            state["parts"].keys() - self.parts.keys(),
        )
        if missing or unknown:
            raise ValueError(
                f"the saved state has other parts than this training: missing {sorted(missing)}, "
                f"unknown {sorted(unknown)}"
            )
        for name, part in self.parts.items():
            try:
                part.load_state_dict(state["parts"][name])
            except RuntimeError as error:  # torch's word for other shapes; not to be taken for a lost peer
                raise ValueError(f"the saved {name} does not fit this training: {error}") from None
        self.step = int(state["step"])
        self.clean = True


@dataclass(frozen=True, slots=True)
class _Before:
    """The parts of a state that a step may change before any weight, as they were at its start."""

    others: StateDict
    buffers: list[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]
    groups: list[tuple[dict[str, Any], dict[str, Any]]]

    def restore(self, parts: Mapping[str, Stateful]) -> None:
        for name, state in self.others.items():
            parts[name].load_state_dict(state)
        with torch.no_grad():
            for owner, name, buffer, value in self.buffers:
                buffer.copy_(value)
                owner._buffers[name] = buffer  # a forward pass may have put another tensor there
        for group, values in self.groups:
            group.update(values)


def clone(state: StateDict, device: str | None = None) -> StateDict:
    """A deep copy of `state`; its tensors on the CPU when `device` says so."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return deepcopy(leaf)
        leaf = leaf.detach()
        return leaf.to(device, copy=True) if device else leaf.clone()

    copied: StateDict = pytree.tree_map(copy, state)
    return copied


def seed_step(seed: int, step: int, rank: int) -> None:
    """Random numbers of a step come from (seed, step, rank), so a redone or moved step draws the same."""
    sequence = np.random.SeedSequence((seed, step, rank))
    torch_seed, numpy_seed, python_seed = (int(word) for word in sequence.generate_state(3))
    # Not torch.manual_seed: without a GPU a CUDA build keeps every such call, with its stack, for later.
    torch.default_generator.manual_seed(torch_seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(torch_seed)
    np.random.seed(numpy_seed)
    random.seed(python_seed)
