"""DistributedDataParallel for a training that may wrap its modules anew at any step.

DDP lays its gradient buckets out twice: by the order of registration, and after the first step by the order
in which gradients came. With three or more ranks another layout sums in another order, so a run that was
recovered at step k would no longer be bit-equal to one that was not. `fix_layout` takes the second layout
first. (`find_unused_parameters` would keep the first one, at the price of one more collective a step: 5 % of
a step of 13 ms, two ranks, gloo.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def wrap(
    module: nn.Module, device: torch.device, before_forward: Callable[[], None], options: dict[str, Any]
) -> DistributedDataParallel:
    """Wrap `module`, which is on `device`; a collective, as gradients of zero are exchanged once.

    `before_forward` is called before a forward pass that broadcasts buffers or settles the layout: peers may
    wait for each other already there. `options` go to DistributedDataParallel. Hooks on gradients see the
    zeros.
    """
    defaults: dict[str, Any] = {
        "init_sync": False,
        "device_ids": [device.index] if device.type == "cuda" else None,
        "find_unused_parameters": _is_sparse(module),  # keeps the first layout, where zeros would be dense
    }
    ddp = DistributedDataParallel(module, **{**defaults, **options})
    is_open = not ddp.find_unused_parameters
    if is_open and not (
        ddp.static_graph or ddp.mixed_precision
    ):  # their first exchange means more than zeros
        fix_layout(ddp)
        is_open = False
    if is_open or any(True for _ in module.buffers()):
        ddp.register_forward_pre_hook(lambda *_: before_forward())
    return ddp


def fix_layout(ddp: DistributedDataParallel) -> None:
    """Let gradients of zero arrive in the order that DDP expects, so that it settles on it for good."""
    ddp.reducer.prepare_for_forward()
    ddp.reducer.prepare_for_backward([])
    parameters = [p for p in ddp.module.parameters() if p.requires_grad]
    kept = [p.grad for p in parameters]
    for parameter in reversed(parameters):
        parameter.grad = None
        torch.autograd.backward(parameter, torch.zeros_like(parameter))
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = gradient
    ddp.reducer._rebuild_buckets()  # or it would be a collective at the start of the first forward pass


def check_reduced(wrapped: Sequence[DistributedDataParallel]) -> None:
    """Raises RuntimeError where some gradients never came, so that none was averaged over the ranks.

    DDP itself says so in the next forward pass, when the optimiser has long taken the wrong step.
    """
    for ddp in wrapped:
        ddp.reducer._check_reducer_finalized()


def unwrap(wrapped: Sequence[DistributedDataParallel]) -> None:
    """Take the gradient hooks off the modules before the next generation wraps them."""
    for ddp in wrapped:
        ddp._remove_autograd_hooks()  # type: ignore[no-untyped-call]


def _is_sparse(module: nn.Module) -> bool:
    """Whether a gradient is sparse: those get buckets of their own."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return any(part.sparse for part in module.modules() if isinstance(part, kinds))
