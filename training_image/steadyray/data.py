"""Data sets that come with a dependency or are computed, so that a recipe needs no download."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Split:
    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True)
class Dataset:
    """Inputs of shape (n, ...) and targets of shape (n,) for classes or (n, outputs) for regression."""

    train: Split
    validation: Split
    test: Split

    @property
    def classifies(self) -> bool:
        return not self.train.y.is_floating_point()


def digits(seed: int = 0) -> Dataset:
    """scikit-learn's 1,797 images of handwritten digits: x (n, 64) in 0..1, y (n,) in 0..9."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(np.asarray(bunch.data, dtype=np.float32) / 16.0)
    y = torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    return _split(x, y, seed)


def linear(samples: int = 1000, inputs: int = 10, noise: float = 0.1, seed: int = 0) -> Dataset:
    """The tutorial's regression: y (n, 1) is a fixed linear function of x (n, inputs) plus noise."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((samples, inputs), dtype=np.float32)
    weights = generator.standard_normal((inputs, 1), dtype=np.float32)
    y = x @ weights + noise * generator.standard_normal((samples, 1), dtype=np.float32)
    return _split(torch.from_numpy(x), torch.from_numpy(y), seed)


def _split(x: torch.Tensor, y: torch.Tensor, seed: int) -> Dataset:
    """70 % to train, 10 % to validate, 20 % held out; the same division on every rank."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    train, validation = int(0.7 * len(x)), int(0.8 * len(x))
    parts = (order[:train], order[train:validation], order[validation:])
    return Dataset(*(Split(x[part], y[part]) for part in parts))


_KNOWN: dict[str, Callable[..., Dataset]] = {"digits": digits, "linear": linear}


def make(name: str, options: dict[str, Any]) -> Dataset:
    made: Dataset = factory(name, _KNOWN)(**options)
    return made


def factory(name: str, known: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A known name, or `module:factory` of the user. Raises ValueError that lists what there is."""
    if name in known:
        return known[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{name!r} is neither one of {', '.join(sorted(known))} nor module:factory")
    found: Callable[..., Any] | None = getattr(importlib.import_module(module), attribute, None)
    if not callable(found):
        raise ValueError(f"{name!r}: the module {module} has no function {attribute!r}")
    return found
