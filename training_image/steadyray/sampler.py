"""Which samples make up step k: the same ones at any world size, so that no recovery changes the data.

Data order depends on (seed, epoch) alone. Step k of an epoch takes slice k of that epoch's permutation;
the ranks divide the slice among themselves. The position is state and is stored with the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(slots=True)
class Sampler:
    """Global batches over `samples` indices, shuffled anew each epoch.

    `position` counts finished steps over the whole training. Give either `epochs` or `steps`. The samples
    that do not fill a last batch of an epoch are left out of that epoch; the next one is shuffled anew.

    Raises ValueError when there are fewer samples than one global batch holds.
    """

    samples: int
    global_batch: int
    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        if self.global_batch < 1 or self.samples < self.global_batch:
            raise ValueError(
                f"the global batch ({self.global_batch}) must be between 1 and the number of "
                f"samples ({self.samples})"
            )
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give the sampler either epochs or steps")

    @property
    def steps_per_epoch(self) -> int:
        return self.samples // self.global_batch

    @property
    def total_steps(self) -> int:
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * self.steps_per_epoch

    @property
    def epoch(self) -> int:
        """Epoch of the next step, counted from 0."""
        return self.position // self.steps_per_epoch

    @property
    def starts_epoch(self) -> bool:
        """Whether the next step is the first of an epoch: the moment to evaluate the one before."""
        return self.position % self.steps_per_epoch == 0

    def batch(self) -> Indices:
        """Indices of the next step's global batch, shape (global_batch,)."""
        offset = self.position % self.steps_per_epoch * self.global_batch
        return _permutation(self.samples, self.seed, self.epoch)[offset : offset + self.global_batch]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "seed": self.seed, "global_batch": self.global_batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError when the saved run drew its batches in another way."""
        for key in ("seed", "global_batch"):
            if state[key] != getattr(self, key):
                raise ValueError(
                    f"the checkpoint was made with {key}={state[key]}, this run has {getattr(self, key)}: "
                    "the next sample is not defined. Use the same value or start a new run"
                )
        self.position = int(state["position"])


@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(samples)


def share(batch: Indices, rank: int, world_size: int) -> Indices:
    """The part of a global batch that `rank` computes: contiguous, sizes differ by at most one."""
    return np.array_split(batch, world_size)[rank]
