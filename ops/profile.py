"""The profile: one typed file that describes a cluster once, for every provider.

Read by `ops.render` and the command line. A key that is unknown is refused with the nearest right one: a
misspelt `idle_second` that silently keeps its default costs more than an error.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Literal

import pydantic
import yaml
from pydantic import BaseModel, ConfigDict, Field

from ops.errors import UsageError

GROUP_NAME = r"^[a-z][a-z0-9-]{0,19}$"

PROFILES = Path(__file__).resolve().parents[1] / "cluster" / "profiles"
"""Those that ship with the repository."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Head(_Strict):
    """The node that holds GCS, dashboard and autoscaler."""

    cpus: int = Field(default=0, ge=0, description="CPUs offered to work; 0 keeps training off the head")
    memory_mib: int = Field(default=1024, ge=256, description="memory offered to work, MiB")
    object_store_mib: int = Field(
        default=96, ge=80, description="object store, MiB; Ray refuses less than 75"
    )
    gcs_port: int = Field(default=6379, ge=0, le=65535, description="port of the GCS; 0 = any free one")
    dashboard_port: int = Field(
        default=8265, ge=0, le=65535, description="port of dashboard and jobs; 0 = any free one"
    )


class Group(_Strict):
    """Nodes of one shape."""

    cpus: int = Field(default=1, ge=0, description="CPUs a node offers")
    gpus: int = Field(
        default=0, ge=0, description="GPUs a node offers; emulated as a number where there are none"
    )
    min: int = Field(default=0, ge=0, description="nodes kept even when idle")
    max: int = Field(default=4, ge=0, description="nodes at most")
    memory_mib: int = Field(default=2048, ge=256, description="memory a node offers to work, MiB")
    object_store_mib: int = Field(default=128, ge=80, description="object store of a node, MiB")
    resources: dict[str, float] = Field(default_factory=dict, description="further Ray resources of a node")
    labels: dict[str, str] = Field(default_factory=dict, description="further Ray labels of a node")

    @pydantic.model_validator(mode="after")
    def _min_below_max(self) -> Group:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) is above max ({self.max})")
        return self


class FailureDetection(_Strict):
    """How fast a dead node or worker is seen."""

    period_ms: int = Field(default=1000, gt=0, description="pause between two health checks, ms")
    timeout_ms: int = Field(default=1000, gt=0, description="patience for one answer, ms")
    failure_threshold: int = Field(default=3, gt=0, description="misses in a row that make a node dead")
    initial_delay_ms: int = Field(default=1000, ge=0, description="pause before a new node's first check, ms")
    kill_worker_ms: int = Field(
        default=300, gt=0, description="what a worker gets to exit before SIGKILL, ms"
    )


class Profile(_Strict):
    """One cluster."""

    name: str = Field(pattern=GROUP_NAME, description="name of the cluster")
    provider: Literal["local"] = Field(default="local", description="what makes the nodes")
    head: Head = Head()
    groups: dict[str, Group] = Field(min_length=1, description="node groups by name")
    idle_seconds: float = Field(default=60.0, gt=0, description="a node idle for so long goes, s")
    autoscaler_interval_seconds: int = Field(
        default=1, ge=1, description="pause between two autoscaler rounds, s"
    )
    failure_detection: FailureDetection = FailureDetection()
    reconnect_seconds: int = Field(default=120, ge=10, description="how long nodes wait for a lost head, s")
    job_stop_seconds: int = Field(default=30, ge=1, description="from a driver's SIGTERM to its SIGKILL, s")
    head_memory_monitor: bool = Field(
        default=False, description="whether Ray's memory monitor runs on the head"
    )
    environment: dict[str, str] = Field(default_factory=dict, description="variables of every Ray process")

    @pydantic.field_validator("groups")
    @classmethod
    def _names(cls, groups: dict[str, Group]) -> dict[str, Group]:
        for name in groups:
            if name == "head":
                raise ValueError("a group cannot be called 'head'")
            if not re.fullmatch(GROUP_NAME, name):
                raise ValueError(f"group name {name!r} must match {GROUP_NAME}")
        return groups


def load(path: Path, overrides: dict[str, Any] | None = None) -> Profile:
    """Read a profile file; `overrides` is a nested mapping laid over it (tests, command line).

    Raises UsageError that names file, key and the nearest right key.
    """
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(
            f"cannot read profile {path}: {error.strerror}", hint="name one with --profile FILE"
        ) from error
    except yaml.YAMLError as error:
        raise UsageError(f"profile {path} is no YAML: {error}", hint="correct the file") from error
    if not isinstance(data, dict):
        raise UsageError(f"profile {path} is no mapping", hint="start from cluster/profiles/local.yaml")
    _bears_its_files_name(path, data)
    try:
        return Profile.model_validate(merge(data, overrides or {}))
    except pydantic.ValidationError as error:
        raise UsageError(
            f"profile {path}: {explain(error)}", hint="keys and defaults: ops/profile.py"
        ) from error


def _bears_its_files_name(path: Path, data: dict[str, Any]) -> None:
    """`make cluster-up ENV=x` takes file x, `make cluster-down ENV=x` cluster x: they must be the same."""
    if path.resolve().parent == PROFILES and data.get("name") != path.stem:
        raise UsageError(
            f"profile {path}: name is {data.get('name')!r}, and the file is called {path.name}",
            hint=f"write `name: {path.stem}` into it, or rename the file",
        )


def explain(error: pydantic.ValidationError) -> str:
    """Say each fault of a profile in one clause, with the nearest right key for an unknown one."""
    return "; ".join(_clause(fault) for fault in error.errors())


def _clause(fault: Any) -> str:
    *parents, key = [str(part) for part in fault["loc"]] or ["profile"]
    where = ".".join([*parents, key])
    if fault["type"] != "extra_forbidden":
        return f"{where}: {fault['msg']}"
    near = difflib.get_close_matches(key, _keys_at(parents), n=1, cutoff=0.5)
    return f"unknown key {where}" + (f", did you mean {near[0]}?" if near else "")


def _keys_at(parents: list[str]) -> list[str]:
    match parents:
        case []:
            model: type[BaseModel] = Profile
        case ["head"]:
            model = Head
        case ["failure_detection"]:
            model = FailureDetection
        case ["groups", _]:
            model = Group
        case _:
            return []
    return list(model.model_fields)


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`, mapping by mapping; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
