"""The throughput of `steadyray bench`: the same loop in plain DDP, started by torchrun.

With `--loss` every rank knows the loss of the global batch after each step, as in this library's loop.
"""

from __future__ import annotations

import sys

import measure
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, optimizer = measure.wide_model_and_optimizer()
    x, y = measure.data(width=512)
    watch = measure.Stopwatch()
    with_loss = "--loss" in sys.argv
    ddp = DistributedDataParallel(model)
    for done in range(watch.total):
        indices = measure.batch(done, rank, world_size, 2 * measure.GLOBAL_BATCH)
        optimizer.zero_grad()
        loss = cross_entropy(ddp(x[indices]), y[indices])
        shared = loss.detach().clone()
        work = dist.all_reduce(shared, async_op=True) if with_loss else None
        loss.backward()
        optimizer.step()
        if work is not None:
            work.wait()
            float(shared / world_size)
        if rank == 0:
            watch.step(done + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
