"""Small models for the recipes; users bring their own with `module:factory`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from steadyray.data import factory


def linear(inputs: int = 10, outputs: int = 1) -> nn.Module:
    return nn.Linear(inputs, outputs)


def mlp(inputs: int = 64, hidden: Sequence[int] = (128, 64), outputs: int = 10) -> nn.Module:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def convnet(channels: int = 16, outputs: int = 10, dropout: float = 0.1) -> nn.Module:
    """For 8x8 images given as rows of 64; has BatchNorm and dropout, as real models do."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * channels * 16, outputs),
    )


_KNOWN: dict[str, Callable[..., nn.Module]] = {"linear": linear, "mlp": mlp, "convnet": convnet}


def make(name: str, options: dict[str, Any]) -> nn.Module:
    made: nn.Module = factory(name, _KNOWN)(**options)
    return made


def save(model: nn.Module, recipe: dict[str, Any], path: str) -> None:
    torch.save({"recipe": recipe, "state": model.state_dict()}, path)


def load(path: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a finished run, ready to predict, and the recipe it was trained by."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    recipe: dict[str, Any] = saved["recipe"]
    model = make(recipe["model"]["name"], recipe["model"]["options"])
    model.load_state_dict(saved["state"])
    return model.eval(), recipe
