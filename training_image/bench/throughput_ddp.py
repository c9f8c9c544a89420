"""The throughput of `steadyray bench`: the same loop in plain DDP, started by torchrun."""

from __future__ import annotations

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
    ddp = DistributedDataParallel(model)
    for done in range(watch.total):
        indices = measure.batch(done, rank, world_size, 2 * measure.GLOBAL_BATCH)
        optimizer.zero_grad()
        cross_entropy(ddp(x[indices]), y[indices]).backward()
        optimizer.step()
        if rank == 0:
            watch.step(done + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
