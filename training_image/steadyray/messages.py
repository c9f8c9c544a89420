"""What driver and members tell each other. Plain data, no torch: the driver imports it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from steadyray.contract import FailureClass


@dataclass(frozen=True, slots=True)
class Settings:
    """What the checkpoints and the random numbers of a run need to know; the same on every rank."""

    root: str | Path | None = None
    attempt: int = 1
    seed: int = 0
    checkpoint_seconds: float | None = 30.0
    checkpoint_steps: int | None = None
    keep_checkpoints: int = 3


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one generation meet. `host` and `port` are rank 0's store."""

    generation: int
    rank: int
    world_size: int
    host: str
    port: int
    backend: str = "gloo"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A place in the next generation, and where its state comes from."""

    rendezvous: Rendezvous
    source: int | None
    """Rank that has the newest state; None: rank 0 loads the newest checkpoint, or starts afresh."""
    receivers: tuple[int, ...]
    parent: str | None = None
    checkpoint_step: int = 0
    """Step of `parent`; what came after it is not saved yet."""
    checkpoint_age: float = 0.0
    """Seconds since the last checkpoint: frequent recoveries must not put off the next one."""


class MemberState(StrEnum):
    STARTING = "starting"
    """Importing, building the model: not yet in `generations()`."""
    READY = "ready"
    """Waiting for a place: a warm spare, or a rank that has left its generation."""
    FORMING = "forming"
    """Meeting the others of a new generation and receiving the state."""
    TRAINING = "training"
    FINISHED = "finished"
    """Through with all steps; still there as a source of the state until every rank is."""
    RETURNED = "returned"
    """`train` has returned; `result` holds what it returned."""
    RAISED = "raised"
    """The user's code raised; `error` says what."""


STAGES = ("data", "forward", "reduce", "update")
"""Where in a step a rank is. In `forward` and `reduce` it may be waiting for its peers."""

WAITING_STAGES = frozenset({STAGES.index("forward"), STAGES.index("reduce")})


@dataclass(frozen=True, slots=True)
class MemberError:
    """An exception of the user's code, ready to be shown: nothing of it needs to be unpickled."""

    kind: str
    message: str
    traceback: str
    exit_code: int = 1
    failure_class: FailureClass = FailureClass.USER_ERROR


@dataclass(frozen=True, slots=True)
class Report:
    state: MemberState
    generation: int = 0
    rank: int = -1
    step: int = 0
    stage: int = 0
    clean: bool = True
    """Whether this member's copy of the state is that of a finished step."""
    fresh: bool = True
    """Whether the state was never trained nor received: it can then be no source."""
    phase: str = ""
    patience: float = 0.0
    step_seconds: float | None = None
    total_steps: int | None = None
    error: MemberError | None = None
    lost_peer: str = ""
    """Text of the collective's error by which this rank left its generation."""
    leaving: bool = False
    """The process got SIGTERM and wants to hand over."""
    sequence: int = 0
    losses: tuple[tuple[int, float | None, float], ...] = ()
    """(step, this rank's share of the loss, wall-clock time it was finished) since the last answer."""
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    notes: tuple[tuple[str, dict[str, Any]], ...] = ()
    """(kind, data) of things that happened: checkpoints, phases."""
    result: dict[str, Any] | None = None
