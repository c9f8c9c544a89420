"""The training of `steadyray bench` with Ray Train: `python train_ray_train.py default|tuned FOLDER`."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import measure
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer


def train(config: Any) -> None:
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    rank = ray.train.get_context().get_world_rank()
    world_size = ray.train.get_context().get_world_size()
    model, optimizer = measure.model_and_optimizer()
    done = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
    x, y = measure.data()
    ddp = DistributedDataParallel(model)
    measure.rank_started(rank)
    while done < measure.STEPS:
        indices = measure.batch(done, rank, world_size)
        optimizer.zero_grad()
        measure.work()
        cross_entropy(ddp(x[indices]), y[indices]).backward()
        optimizer.step()
        done += 1
        if rank == 0:
            measure.step_done(done)
        if done % measure.CHECKPOINT_STEPS == 0:
            report(done, rank, model, optimizer)


def report(done: int, rank: int, model: Any, optimizer: Any) -> None:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
            torch.save(state, os.path.join(folder, "state.pt"))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": done}, checkpoint=checkpoint)


if __name__ == "__main__":
    measure.driver_started()
    tuned = sys.argv[1] == "tuned"
    TorchTrainer(
        train,
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        torch_config=TorchConfig(backend="gloo", **({"timeout_s": 20} if tuned else {})),
        run_config=ray.train.RunConfig(
            name="bench",
            storage_path=sys.argv[2],
            failure_config=ray.train.FailureConfig(max_failures=-1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    ).fit()
