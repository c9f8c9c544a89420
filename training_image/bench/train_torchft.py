"""The training of `steadyray bench` with Ray Train's torchft mode: `python train_torchft.py FOLDER`.

After Ray's own example (ray/train/v2/examples/pytorch/torchft_linear_example.py), with its time-outs, and
with both replicas as the minimum: with less the whole group was seen to start over after a kill.
It reports no checkpoints, since a report waits for all workers.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import measure
import ray.train
from ray.train.torch import TorchTrainer
from ray.train.v2.torch.torchft_config import TorchftConfig


def train(config: Any) -> None:
    import torch
    from torch.nn.functional import cross_entropy
    from torchft import Manager, Optimizer, ProcessGroupGloo
    from torchft.checkpointing.pg_transport import PGTransport

    rank = ray.train.get_context().get_world_rank()
    world_size = ray.train.get_context().get_world_size()
    model, inner = measure.model_and_optimizer()

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    group = ProcessGroupGloo(timeout=timedelta(seconds=30))
    manager = Manager(
        pg=group,
        min_replica_size=world_size,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        world_size=1,
        rank=0,
        replica_id=f"bench_{rank}",
        timeout=timedelta(seconds=60),
        checkpoint_transport=PGTransport(group, timeout=timedelta(seconds=30), device=torch.device("cpu")),
    )
    # Not torchft's DistributedDataParallel: after a failed collective the hook of 0.2.0 raises AssertionError
    # (`assert fut._fut`), the survivor dies too, and training starts over.
    optimizer = Optimizer(manager, inner)
    x, y = measure.data()
    measure.rank_started(rank)
    while (before := manager.current_step()) < measure.STEPS:
        indices = measure.batch(before, rank, world_size)
        optimizer.zero_grad()
        measure.work()
        cross_entropy(model(x[indices]), y[indices]).backward()
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        optimizer.step()
        if rank == 0 and manager.current_step() > before:  # a step that was not committed is no step
            measure.step_done(manager.current_step())
    manager.shutdown()


if __name__ == "__main__":
    measure.driver_started()
    TorchTrainer(
        train,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        torch_config=TorchftConfig(lighthouse_kwargs={"min_replicas": 2}, backend="gloo"),
        run_config=ray.train.RunConfig(
            name="bench",
            storage_path=sys.argv[1],
            failure_config=ray.train.FailureConfig(max_failures=-1),
        ),
    ).fit()
