"""The training of `steadyray bench` with this library: `python train_steadyray.py SPARES`."""

from __future__ import annotations

import sys
from typing import Any

import measure
import steadyray


def train(config: Any) -> None:
    from torch.nn.functional import cross_entropy

    model, optimizer = measure.model_and_optimizer()
    x, y = measure.data()
    sampler = steadyray.Sampler(measure.SAMPLES, measure.GLOBAL_BATCH, steps=measure.STEPS)
    state = steadyray.State(model=model, optimizer=optimizer, sampler=sampler)
    for generation in steadyray.generations(state):
        with generation:
            measure.rank_started(generation.rank)
            ddp = generation.wrap(model)
            for step in generation.steps(sampler):
                optimizer.zero_grad()
                for indices in step.micro_batches(measure.GLOBAL_BATCH // 2):
                    measure.work()  # so one rank alone needs twice as long for the same global batch
                    step.backward(cross_entropy(ddp(x[indices]), y[indices], reduction="sum"))
                optimizer.step()
                step.commit()
                if generation.rank == 0:
                    measure.step_done(step.number + 1)


if __name__ == "__main__":
    measure.driver_started()
    spares = int(sys.argv[1])
    steadyray.run(train, workers=(1, 2), spares=spares, checkpoint_steps=measure.CHECKPOINT_STEPS)
