"""What the training library and the supervisor share: failure classes, run directory, event kinds.

Standard library only, because the supervisor (`ops`) imports this module and nothing else of the
package, and because the job's entrypoint wrapper runs before anything is installed.

The run directory is described in docs/architecture.md. Paths below are relative to it, with `/` as
separator whatever the storage is.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

SCHEMA = 1

# --- environment of every job that the supervisor starts -------------------------------------------
ENV_RUN = "STEADYRAY_RUN"
ENV_ATTEMPT = "STEADYRAY_ATTEMPT"
ENV_RUN_DIR = "STEADYRAY_RUN_DIR"
ENV_RESUME_FROM = "STEADYRAY_RESUME_FROM"
"""Path of the newest good checkpoint folder; empty or absent when there is none."""

ENV_SECRETS = "STEADYRAY_SECRETS"
"""Names of variables, joined by commas, whose values may stand in nothing that is written; see hiding."""

ENV_RAY_TRAIN = "RAY_TRAIN_CALLBACKS"
"""Ray's own variable: classes that Ray Train loads, as `module.Class`, joined by commas."""

PHASE_WAITING = "waiting"
"""Phase of a run whose ranks wait for capacity."""

RUN_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?")
"""A DNS label of at most 48 characters, so that pods, labels and submission ids can carry it."""


class FailureClass(StrEnum):
    """What went wrong, from a closed set. docs/states.md says what each one leads to."""

    USER_ERROR = "UserError"
    BAD_INPUT = "BadInput"
    BAD_ENVIRONMENT = "BadEnvironment"
    OUT_OF_MEMORY_HOST = "OutOfMemoryHost"
    OUT_OF_MEMORY_DEVICE = "OutOfMemoryDevice"
    PREEMPTED = "Preempted"
    MAINTENANCE = "Maintenance"
    WORKER_CRASH = "WorkerCrash"
    NODE_LOST = "NodeLost"
    DRIVER_LOST = "DriverLost"
    HARDWARE_FAULT = "HardwareFault"
    NETWORK_FAULT = "NetworkFault"
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"
    HANG = "Hang"
    STORAGE_TRANSIENT = "StorageTransient"
    CHECKPOINT_CORRUPT = "CheckpointCorrupt"
    DIVERGENCE = "Divergence"
    HEAD_LOST = "HeadLost"
    CAPACITY_MISSING = "CapacityMissing"
    QUEUED = "Queued"
    CONTROL_PLANE_BLIND = "ControlPlaneBlind"
    CANCELLED = "Cancelled"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    UNKNOWN = "Unknown"


class EventKind(StrEnum):
    """Kinds of events in `events/`; the ledger and the report are made from these alone."""

    # written by the supervisor
    RUN_CREATED = "RunCreated"
    ATTEMPT_CLAIMED = "AttemptClaimed"
    ATTEMPT_SUBMITTED = "AttemptSubmitted"
    ATTEMPT_RUNNING = "AttemptRunning"
    ATTEMPT_ENDED = "AttemptEnded"
    INCIDENT_OPENED = "IncidentOpened"
    EVIDENCE_SAVED = "EvidenceSaved"
    ACTION_TAKEN = "ActionTaken"
    ACTION_WITHHELD = "ActionWithheld"
    WAITING = "Waiting"
    CLUSTER_SILENT = "ClusterSilent"
    RUN_FINISHED = "RunFinished"
    # written by the driver of the training library
    DRIVER_STARTED = "DriverStarted"
    GENERATION_STARTED = "GenerationStarted"
    STEPS_DONE = "StepsDone"
    RANK_LOST = "RankLost"
    HANG_SUSPECTED = "HangSuspected"
    RECOVERED = "Recovered"
    PHASE = "Phase"
    CHECKPOINT_SAVED = "CheckpointSaved"
    CHECKPOINT_LOADED = "CheckpointLoaded"
    CHECKPOINT_SET_ASIDE = "CheckpointSetAside"
    TRAINING_FINISHED = "TrainingFinished"


class Depth(StrEnum):
    """How deep a recovery went; the shallowest that will do is taken."""

    HOT = "hot"
    RELOAD = "reload"
    NEW_ATTEMPT = "new-attempt"
    NEW_CLUSTER = "new-cluster"


# --- paths -------------------------------------------------------------------------------------------
SPEC = "spec.json"
RESULT = "result.json"
STOP_REQUEST = "stop.json"
MANIFEST = "MANIFEST.json"
CHECKPOINTS = "checkpoints"
CODE = "code"


def attempt_dir(attempt: int) -> str:
    return f"attempts/{attempt:04d}"


def lease(attempt: int) -> str:
    return f"{attempt_dir(attempt)}/lease.json"


def started(attempt: int) -> str:
    return f"{attempt_dir(attempt)}/started.json"


def progress(attempt: int) -> str:
    return f"{attempt_dir(attempt)}/progress.json"


def rank_progress(attempt: int, rank: int) -> str:
    """Written by `steadyray.progress` in scripts that keep their own launcher; one file a rank."""
    return f"{attempt_dir(attempt)}/ranks/{rank:05d}.json"


def failure(attempt: int) -> str:
    return f"{attempt_dir(attempt)}/failure.json"


def exceptions(attempt: int) -> str:
    """Written by `steadyray.ray_train`: what the workers of a Ray Train script raised, by rank."""
    return f"{attempt_dir(attempt)}/exceptions.json"


def evidence(attempt: int, name: str) -> str:
    return f"{attempt_dir(attempt)}/evidence/{name}"


def action(incident: str, k: int) -> str:
    return f"actions/{incident}-{k}.json"


def event(writer: str, seq: int) -> str:
    return f"events/{writer}/{seq:08d}.json"


def checkpoint(step: int, attempt: int, generation: int) -> str:
    """Folder of one checkpoint. Attempt and generation are in the path: unique paths are the fence."""
    return f"{CHECKPOINTS}/{step:010d}-{attempt:04d}-{generation:04d}"


def lineage(name: str) -> tuple[int, int, int] | None:
    """(attempt, generation, step) of a checkpoint by its folder's name; None for another folder.

    Checkpoints are ordered by it: a roll-back begins a new branch, so a higher step of an older attempt or
    generation belongs to a lineage that was given up.
    """
    parts = name.split("-")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return None
    step, attempt, generation = map(int, parts)
    return attempt, generation, step


# --- records -----------------------------------------------------------------------------------------
class Record:
    """Base of the JSON records: `to_json` and a `from_json` that ignores keys of newer writers."""

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        return cls(**{key: value for key, value in data.items() if key in known})


@dataclass(frozen=True, slots=True)
class RankStatus(Record):
    """One rank as last seen. Times are wall-clock seconds; ages must be taken from one's own clock."""

    rank: int
    step: int
    phase: str = "train"
    stage: str = ""
    """Where in the step the rank is: the others wait for the rank with the lowest (step, stage)."""
    node: str = ""
    host: str = ""
    pid: int = 0
    time: float = 0.0


_FIGURES: tuple[tuple[str, type[int] | type[float], int | None], ...] = (
    ("step", int, 0),
    ("total_steps", int, None),
    ("world_size", int, 1),
    ("spares", int, 0),
    ("generation", int, 1),
    ("attempt", int, 1),
    ("checkpoint_step", int, None),
    ("epoch", float, None),
    ("loss", float, None),
    ("samples_per_second", float, None),
    ("step_seconds", float, None),
    ("time", float, 0),
)
"""Figures of a Progress: name, kind, and what stands for one that makes no sense."""


def _number(value: Any, kind: type[int] | type[float], otherwise: int | None) -> int | float | None:
    try:
        return otherwise if value is None else kind(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise


@dataclass(frozen=True, slots=True)
class Progress(Record):
    """`attempts/<n>/progress.json`, replaced at most about once a second.

    `step` counts finished steps: 5 means that steps 1 to 5 are in the state.
    """

    step: int
    total_steps: int | None = None
    epoch: float | None = None
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    samples_per_second: float | None = None
    world_size: int = 1
    spares: int = 0
    generation: int = 1
    attempt: int = 1
    phase: str = "train"
    step_seconds: float | None = None
    """Median seconds a step over the last steps."""
    checkpoint_step: int | None = None
    ranks: list[dict[str, Any]] = field(default_factory=list)
    message: str = ""
    """What just went wrong and what is being done about it; empty when nothing is."""
    time: float = 0.0

    def __post_init__(self) -> None:
        """Scripts of any kind write this file too: what is no number must end neither view nor supervisor."""
        for name, kind, otherwise in _FIGURES:
            object.__setattr__(self, name, _number(getattr(self, name), kind, otherwise))
        for name, word in (("phase", "train"), ("message", "")):
            if not isinstance(getattr(self, name), str):
                object.__setattr__(self, name, word)
        ranks = self.ranks if isinstance(self.ranks, list) else []
        metrics = self.metrics if isinstance(self.metrics, dict) else {}
        figures = {str(k): v for k, v in metrics.items() if isinstance(v, int | float)}
        object.__setattr__(self, "ranks", [rank for rank in ranks if isinstance(rank, dict)])
        object.__setattr__(self, "metrics", figures)


@dataclass(frozen=True, slots=True)
class Failure(Record):
    """`attempts/<n>/failure.json`: the hint of the training library about its own end."""

    failure_class: str
    message: str
    rank: int | None = None
    node: str = ""
    host: str = ""
    exit_code: int | None = None
    traceback: str = ""
    step: int | None = None
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Event(Record):
    """`events/<writer>/<seq>.json`, created once and never changed. `time` is wall clock in seconds."""

    time: float
    kind: str
    writer: str
    seq: int
    attempt: int = 0
    generation: int = 0
    incident: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest(Record):
    """`checkpoints/<id>/MANIFEST.json`, written last. A checkpoint without one does not exist.

    `files` maps a file name to `{"bytes": int, "sha256": hex}`; `parent` is the id of the checkpoint
    that this lineage resumed from or saved before; `samples` is the number of samples consumed.
    """

    step: int
    attempt: int
    generation: int
    files: dict[str, dict[str, Any]]
    parent: str | None = None
    world_size: int = 1
    samples: int = 0
    sampler: dict[str, Any] = field(default_factory=dict)
    time: float = 0.0
