"""Recipes: typed YAML files that describe one training, for `python -m steadyray.run`.

Unknown keys are refused with the nearest right one; `key=value` on the command line overrides a key.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
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


class _Loader(yaml.SafeLoader):
    """YAML as people write recipes: `1e-4` is a number as in YAML 1.2, and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} stands there twice", key.start_mark
                )
            seen.add(name or id(key))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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
    seed: int = Field(0, ge=0, lt=2**63)
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
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such recipe") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except RecursionError as error:
        raise RecipeError(f"{path}: nested too deeply") from error
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
        target[last] = yaml.load(value, _Loader)
    except yaml.YAMLError as error:
        raise RecipeError(f"{override!r}: the value is not valid YAML: {error}") from error


def _explain(source: str, error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "recipe"
    if error["type"] == "model_type" and error["loc"]:
        keys = ", ".join(f"{where}.{key}" for key in _keys(error["loc"]))
        return f"{source}: {where} is a section and has no value of its own; its keys: {keys}"
    if error["type"] != "extra_forbidden":
        return f"{source}: {where}: {error['msg']}"
    return f"{source}: unknown key {where!r}{_nearest(error['loc'])}"


def _nearest(location: tuple[str | int, ...]) -> str:
    name, siblings = str(location[-1]), _keys(location[:-1])
    elsewhere = [path for path in _paths(Recipe) if path.rpartition(".")[2] == name]
    near = elsewhere or difflib.get_close_matches(name, siblings, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(siblings)}"


def _keys(location: tuple[str | int, ...]) -> list[str]:
    model: Any = Recipe
    for part in location:
        model = model.model_fields[part].annotation
    return sorted(model.model_fields)


def _paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key by its full name, such as `optimizer.lr`."""
    for name, field in model.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _paths(field.annotation, f"{prefix}{name}.")
