"""Two optimisers, an average of the weights and an evaluation of one's own: `python two_optimizers.py STEPS`.

Started by test_one_process_and_torchrun.py; no test by itself.
"""

from __future__ import annotations

import copy
import json
import sys

import steadyray
import torch
from torch import nn


class Average:
    """An exponential moving average of a model's weights; a part of the state like any other."""

    def __init__(self, model: nn.Module, decay: float = 0.9) -> None:
        self.model, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mine, new in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(new, 1 - self.decay)

    def state_dict(self) -> dict:
        return self.model.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.model.load_state_dict(state)


def train(steps: int) -> dict:
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True)
    # Not seeded: under torchrun each rank begins with weights of its own until rank 0's are shared.
    encoder, head = nn.Linear(8, 8), nn.Linear(8, 1)
    model = nn.Sequential(encoder, nn.Tanh(), head)
    average = Average(model)
    slow = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
    fast = torch.optim.Adam(head.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(fast, step_size=20, gamma=0.5)
    sampler = steadyray.Sampler(samples=len(x), global_batch=32, steps=steps)
    state = steadyray.State(
        model=model, average=average, slow=slow, fast=fast, schedule=schedule, sampler=sampler
    )
    evaluations = []
    for generation in steadyray.generations(state):
        with generation:
            first = sampler.position
            ddp = generation.wrap(model)
            for step in generation.steps(sampler):
                slow.zero_grad()
                fast.zero_grad()
                for part in step.micro_batches(limit=8):
                    step.backward(((ddp(x[part]) - y[part]) ** 2).sum())
                slow.step()
                fast.step()
                schedule.step()
                average.update(model)
                step.commit()
                if sampler.starts_epoch:
                    with generation.phase("my own evaluation", patience=30), torch.no_grad():
                        evaluations.append(float(((average.model(x) - y) ** 2).mean()))
    weights = float(sum(p.double().abs().sum() for p in model.parameters()))
    return {"first": first, "evaluations": evaluations, "weights": weights, "rate": schedule.get_last_lr()[0]}


if __name__ == "__main__":
    print("RESULT", json.dumps(train(int(sys.argv[1]))), flush=True)
