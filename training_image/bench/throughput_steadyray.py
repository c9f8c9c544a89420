"""The throughput of `steadyray bench`: this library's loop over the wide model, two ranks on Ray."""

from __future__ import annotations

from typing import Any

import measure
import steadyray

GLOBAL_BATCH = 2 * measure.GLOBAL_BATCH


def train(config: Any) -> None:
    from torch.nn.functional import cross_entropy

    model, optimizer = measure.wide_model_and_optimizer()
    x, y = measure.data(width=512)
    watch = measure.Stopwatch()
    sampler = steadyray.Sampler(measure.SAMPLES, GLOBAL_BATCH, steps=watch.total)
    state = steadyray.State(model=model, optimizer=optimizer, sampler=sampler)
    for generation in steadyray.generations(state):
        with generation:
            ddp = generation.wrap(model)
            for step in generation.steps(sampler):
                optimizer.zero_grad()
                for indices in step.micro_batches(measure.GLOBAL_BATCH):
                    step.backward(cross_entropy(ddp(x[indices]), y[indices], reduction="sum"))
                optimizer.step()
                step.commit()
                if generation.rank == 0:
                    watch.step(step.number + 1)


if __name__ == "__main__":
    measure.driver_started()
    steadyray.run(train, workers=2)
