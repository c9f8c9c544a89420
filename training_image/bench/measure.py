"""The measuring stick of `steadyray bench`: one model, one data set, one line a step, for every system.

Imported by the training scripts beside it. Lines are appended to files in $BENCH_FOLDER, which every node
shares, so that a step counts as finished by the same sign whatever trains.
"""

from __future__ import annotations

import os
import time

import torch
from torch import nn

GLOBAL_BATCH = 64
SAMPLES = 4096
STEPS = 1_000_000
"""More than any measurement lasts: a training is ended by who measures it."""
CHECKPOINT_STEPS = 20
"""About a second; for the systems that go back to a checkpoint."""


def _append(name: str, *words: object) -> None:
    """One write in append mode: lines of several processes do not mix."""
    line = " ".join(str(word) for word in (f"{time.time():.6f}", *words)) + "\n"
    file = os.open(
        os.path.join(os.environ["BENCH_FOLDER"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def driver_started() -> None:
    _append("driver", os.getpid())


def rank_started(rank: int) -> None:
    _append("ranks", rank, os.getpid())


def step_done(step: int) -> None:
    """Called by rank 0 once its optimiser has finished step number `step`, counted from 1."""
    _append("steps", step)


def result(text: str) -> None:
    _append("result", text)


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    """0.3 M parameters, as in the prototype of hot recovery."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def wide_model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    """1.6 M parameters: at 64 samples a rank, computing takes longer than exchanging gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def data(width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, width, generator=made), torch.randint(10, (SAMPLES,), generator=made)


def batch(step: int, rank: int, world_size: int, size: int = GLOBAL_BATCH) -> torch.Tensor:
    """This rank's indices of step `step`: a slice of an epoch's permutation."""
    per_epoch = SAMPLES // size
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(step // per_epoch))
    first = step % per_epoch * size
    return order[first : first + size][rank::world_size]


def work() -> None:
    """What makes a step last 50 ms, before gradients are exchanged."""
    time.sleep(0.05)


class Stopwatch:
    """Steps a second of rank 0 between the end of the warm-up and the last step."""

    def __init__(self, warm_up: int = 100, steps: int = 800) -> None:
        self.warm_up, self.total = warm_up, warm_up + steps
        self._started = 0.0

    def step(self, done: int) -> None:
        if done == self.warm_up:
            self._started = time.perf_counter()
        if done == self.total:
            result(f"{(self.total - self.warm_up) / (time.perf_counter() - self._started):.4f}")
