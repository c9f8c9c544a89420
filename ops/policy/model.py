"""Values that the supervisor's policy takes and returns; everything here is frozen and knows no I/O.

`ops.supervise` gathers a `RunView`, `ops.policy.resubmission` answers with a `Decision`, and the command
line shows a `RunSnapshot`. Ages and durations are seconds on the supervisor's own monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from steadyray.contract import Failure, FailureClass, Progress


class RunState(StrEnum):
    """Where a run stands; legal moves are in `ops.policy.lifecycle`."""

    PENDING = "Pending"
    SUBMITTING = "Submitting"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    WAITING = "Waiting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"


FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED})


class JobStatus(StrEnum):
    """Ray's own words for a submitted job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        return self in {JobStatus.STOPPED, JobStatus.SUCCEEDED, JobStatus.FAILED}


class Api(StrEnum):
    """What the cluster's HTTP interface said when it was asked about the job."""

    ANSWERS = "answers"
    PARTIAL = "partial"
    """The front page answers, the Jobs API does not."""
    SILENT = "silent"


class Action(StrEnum):
    SUBMIT = "Submit"
    RESUBMIT = "Resubmit"
    STOP = "Stop"
    WAIT = "Wait"
    RECREATE_CLUSTER = "RecreateCluster"
    RESTART_KEEPER = "RestartKeeper"
    FINISH = "Finish"
    RESUME = "Resume"
    """By a person, never decided: what happened before it no longer counts."""
    NONE = "None"


class Mode(StrEnum):
    """Whether a supervisor does what it decides."""

    OBSERVE = "observe"
    ACT = "act"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact with its source. `source` is one of hint, stop, incident, job, exit, exception, log, api."""

    source: str
    text: str
    time: float = 0.0
    """Wall clock seconds at which it was seen or written."""
    line: int = 0
    """Number of the line in its log, from 1; 0 if it is none of a log."""
    stamp: str = ""
    """The time that the line itself carries, as it is written there."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Whom the evidence points at; empty where it points at nobody."""

    rank: int | None = None
    node: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure is, which rule said so, and how sure it is (0 to 1)."""

    failure_class: FailureClass
    rule: str
    message: str
    confidence: float
    evidence: tuple[Evidence, ...] = ()
    culprit: Culprit = Culprit()
    node_action: str | None = None
    """Of the rule, instead of what the class leads to."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A submitted job as Ray describes it."""

    status: JobStatus
    message: str = ""
    error_type: str = ""
    exit_code: int | None = None
    driver_node: str = ""
    driver_host: str = ""


@dataclass(frozen=True, slots=True)
class Budgets:
    """What automation may spend. All are counts of attempts but for the limits, which are seconds."""

    infrastructure: int = 8
    """Charged resubmissions until a new checkpoint refills it."""
    once: int = 1
    """For classes that deserve a single retry (a leak, a bad checkpoint, a crash in native code)."""
    strikes: int = 3
    """Charged attempts without a step beyond the best so far; they end the run."""
    wait_seconds: float = 3600.0
    """How long a run waits for capacity; 0 does not wait."""
    time_seconds: float | None = None
    """Wall time of the whole run; None has no limit."""
    blind_seconds: float = 1800.0
    """How long a cluster may be silent, with no step seen, before the run ends as HeadLost."""
    patience_seconds: float = 60.0
    """Silence of progress *and* log after which a driver counts as hung; see `progress.patience`."""


@dataclass(frozen=True, slots=True)
class PastAction:
    """A claimed act, from `actions/`: what was decided for an incident that ended or touched an attempt."""

    incident: str
    k: int
    attempt: int
    action: str
    failure_class: str
    charged: bool
    best_step: int
    """Highest step that any attempt had reached when it was decided."""
    checkpoint_step: int = 0
    completed: bool = True
    reason: str = ""
    message: str = ""
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that went wrong, as shown to a person."""

    id: str
    attempt: int
    failure_class: str
    message: str
    action: str = ""
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the job asks for and what the cluster has, as `{resource: amount}`."""

    asked: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    available: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerError:
    """One exception of one rank; those of one moment have the same time, in wall clock seconds."""

    time: float
    rank: int
    kind: str
    message: str
    step: int
    """The last step that was reported before it."""

    @property
    def words(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True, slots=True)
class RunView:
    """Everything that a decision may depend on, gathered once a tick."""

    run: str
    budgets: Budgets = Budgets()
    restart_ok: bool = False
    finished: RunState | None = None
    stop_requested: bool = False
    run_seconds: float = 0.0
    attempt: int = 0
    submitted: bool = False
    started: bool = False
    api: Api = Api.ANSWERS
    cluster_gone: bool = False
    """All processes of the cluster are proven gone; silence alone never sets it."""
    worker_errors: tuple[WorkerError, ...] = ()
    """Of a Ray Train script's workers in this attempt, oldest first."""
    no_nodes: str = ""
    """Why nodes that it waits for do not come, where whoever starts them told; without a full stop."""
    keeper_gone: bool = False
    """Processes of the cluster live, but not the one that would start a dead head again."""
    job: JobView | None = None
    verdict: Verdict | None = None
    """Set once the attempt has ended; `failure.classify` made it."""
    progress: Progress | None = None
    hint: Failure | None = None
    best_step: int = 0
    checkpoint_step: int = 0
    keeps_state: bool = False
    """The run directory holds a checkpoint or a file of the script's own, so a restart can resume."""
    progress_age: float = 0.0
    log_age: float = 0.0
    pending_age: float = 0.0
    api_age: float = 0.0
    """How long the cluster has been silent."""
    unknown_age: float = 0.0
    """How long an answering cluster has not known the job."""
    incident_age: float = 0.0
    """How long the attempt has been seen ended."""
    capacity: Capacity = Capacity()
    history: tuple[PastAction, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do and why. `reason` is one CamelCase word, `message` a sentence for a person."""

    action: Action
    reason: str
    message: str
    verdict: Verdict | None = None
    final: RunState | None = None
    charged: bool = False
    depth: str = ""
    delay_seconds: float = 0.0
    budget_left: int | None = None
    next: str = ""
    """What happens after this, for `explain`."""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """What a person sees of a run at one moment."""

    run: str
    state: RunState
    attempt: int = 0
    progress: Progress | None = None
    message: str = ""
    incidents: tuple[Incident, ...] = ()
    started: float = 0.0
    """Wall clock seconds at which the run was created."""
    waiting: str = ""
    """Why it waits; empty when it does not."""
    cluster: str = ""
    exit_code: int | None = None
    failure_class: str = ""
    log_line: str = ""
    """Last line of the driver's log, for scripts that report no progress."""
