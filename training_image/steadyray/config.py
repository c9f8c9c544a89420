"""Recipes: typed YAML files that describe one training, for `python -m steadyray.run`.

Unknown keys are refused with the nearest right one; `key=value` on the command line overrides a key.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the file, the key and the fix."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Section):
    name: str
    """`digits`, `linear`, or `module:factory` of a function that returns a steadyray.data.Dataset."""
    options: dict[str, Any] = Field(default_factory=dict)


class Model(_Section):
    name: str
    """`mlp`, `convnet`, `linear`, or `module:factory` of a function that returns a torch.nn.Module."""
    options: dict[str, Any] = Field(default_factory=dict)


class Optimizer(_Section):
    name: str = "SGD"
    """Name of a class in torch.optim."""
    lr: PositiveFloat = 0.1
    options: dict[str, Any] = Field(default_factory=dict)


class Workers(_Section):
    min: PositiveInt = 1
    max: PositiveInt = 1
    spares: int = Field(0, ge=0)
    """Warm processes that become a rank within a second; they hold no CPU until then."""
    cpus: PositiveFloat = 1.0
    gpus: float = Field(0.0, ge=0)
    threads: PositiveInt = 1
    """Threads of each rank for computing (OMP_NUM_THREADS)."""
    spare_capacity: bool = False
    """Whether a spare holds the CPUs and GPUs of a rank; with GPUs it must."""

    @model_validator(mode="after")
    def _ordered(self) -> Workers:
        if self.min > self.max:
            raise ValueError(f"workers.min ({self.min}) is above workers.max ({self.max})")
        return self


class Checkpoints(_Section):
    every_seconds: PositiveFloat | None = 30.0
    every_steps: PositiveInt | None = None
    """Takes precedence over `every_seconds`."""


class Hang(_Section):
    """When a rank that makes no step is replaced; see steadyray.recovery.Patience."""

    floor_seconds: PositiveFloat = 5.0
    alone_seconds: PositiveFloat = 60.0


class Recipe(_Section):
    data: Data
    model: Model
    loss: str = "cross_entropy"
    """Name of a function in torch.nn.functional that takes `reduction`."""
    optimizer: Optimizer = Optimizer()
    epochs: PositiveInt | None = None
    steps: PositiveInt | None = None
    batch_size: PositiveInt = 64
    """Global batch: it stays the same whatever the number of workers is."""
    micro_batch_size: PositiveInt | None = None
    seed: int = 0
    workers: Workers = Field(default_factory=lambda: Workers.model_validate({}))
    checkpoints: Checkpoints = Checkpoints()
    hang: Hang = Hang()
    candidates: PositiveInt = 1
    """Above 1: so many models are trained in parallel as Ray tasks; the best by validation loss is kept."""
    step_seconds: float = Field(0.0, ge=0)
    """Makes every step last at least this long; for demonstrations of faults on small data."""

    @model_validator(mode="after")
    def _one_length(self) -> Recipe:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


def load(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe and apply `key.sub=value` overrides, whose values are YAML. Raises RecipeError."""
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such recipe") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise RecipeError(f"{path}: a recipe is a mapping with at least `data` and `model`")
    for override in overrides:
        _override(content, override)
    return parse(content, str(path))


def parse(content: Mapping[str, Any], source: str) -> Recipe:
    try:
        return Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(source, e) for e in error.errors())) from error


def _override(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals:
        raise RecipeError(f"{override!r}: an override has the form key=value, for example optimizer.lr=0.05")
    *sections, last = key.split(".")
    target = content
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise RecipeError(f"{override!r}: {section} is a value, not a section")
    try:
        target[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RecipeError(f"{override!r}: the value is not valid YAML: {error}") from error


def _explain(source: str, error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "recipe"
    if error["type"] != "extra_forbidden":
        return f"{source}: {where}: {error['msg']}"
    nearest = difflib.get_close_matches(str(error["loc"][-1]), _keys(error["loc"][:-1]), n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else f"; known: {', '.join(_keys(error['loc'][:-1]))}"
    return f"{source}: unknown key {where!r}{hint}"


def _keys(location: tuple[str | int, ...]) -> list[str]:
    model: Any = Recipe
    for part in location:
        model = model.model_fields[part].annotation
    return sorted(model.model_fields)
