"""Three ranks train, and wrap their model anew in the middle: does the sum stay the same, bit by bit?

Prints one line of JSON from rank 0: for each way of wrapping, whether the weights equal those of an
undisturbed training; and the error of a model of which a step leaves a parameter out.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
import torch.distributed as dist
from steadyray import data_parallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")
STEPS = 8


class Net(nn.Module):
    """Registered in another order than used; large enough for two buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(700, 10)
        self.first = nn.Linear(64, 700)
        self.middle = nn.Linear(700, 700)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(torch.relu(self.first(x)))
        return self.last(torch.relu(hidden))  # type: ignore[no-any-return]


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def ours(module: nn.Module) -> DistributedDataParallel:
    return data_parallel.wrap(module, CPU, lambda: None, {})


def plain(module: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(module, init_sync=False)


def weights(wrap: Callable[[nn.Module], DistributedDataParallel], wrapped_again_at: int) -> torch.Tensor:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mine = torch.Generator().manual_seed(dist.get_rank())
    ddp = wrap(model)
    for step in range(STEPS):
        if step == wrapped_again_at:
            data_parallel.unwrap([ddp])
            ddp = wrap(model)
        optimizer.zero_grad()
        ddp(torch.randn(16, 64, generator=mine)).square().mean().backward()
        data_parallel.check_reduced([ddp])
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def left_out() -> str:
    ddp = ours(Forgetful())
    ddp(torch.ones(2, 4)).sum().backward()
    try:
        data_parallel.check_reduced([ddp])
    except RuntimeError as error:
        return str(error)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    made = {name: (weights(w, -1), weights(w, STEPS // 2)) for name, w in (("ours", ours), ("plain", plain))}
    equal = {name: torch.equal(*pair) for name, pair in made.items()}
    error = left_out()
    if dist.get_rank() == 0:
        print(json.dumps({**equal, "left out": error}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
