"""What the use cases need from the world, as protocols; `ops.adapters` implements them.

Every method may raise the errors of `ops.errors` that it names and no others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ops.policy.model import Capacity, JobStatus, JobView


@dataclass(frozen=True, slots=True)
class JobRequest:
    """One submission. `resources` places the driver (`{}`: on the head, which we never want)."""

    submission_id: str
    entrypoint: str
    runtime_env: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    cpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One Ray node as the head lists it."""

    id: str
    host: str
    alive: bool
    is_head: bool
    message: str = ""
    resources: dict[str, float] = field(default_factory=dict)


class RayCluster(Protocol):
    """Jobs, nodes and packages of one cluster. Raises UnreachableError, ServerError, AuthError."""

    def session(self) -> str:
        """Name of the head's session; proves that the front page answers."""

    def submit(self, request: JobRequest) -> bool:
        """True if this call made the job, False if it was there already. Raises BadRequestError."""

    def job(self, submission_id: str) -> JobView | None:
        """None if the head answers that it does not know the job."""

    def jobs_of(self, run_url: str) -> tuple[tuple[str, JobStatus], ...]:
        """Submission id and status of every job that writes into that run directory."""

    def log_tail(self, submission_id: str, lines: int = 400) -> str:
        """Last lines of the driver's log; empty where its node is gone."""

    def stop(self, submission_id: str) -> None:
        """Asks a running job to end; does nothing to one that has ended."""

    def end_pending(self, submission_id: str) -> None:
        """Ends a job that waits for resources, which `stop` cannot do."""

    def upload_package(self, name: str, data: bytes) -> str:
        """The URI under which jobs find the package; uploads it only if it is not there."""

    def nodes(self) -> tuple[NodeView, ...]: ...

    def capacity(self, asked: dict[str, float]) -> Capacity: ...


class RunStore(Protocol):
    """Files of one run. Paths as in `steadyray.contract`. Raises StoreError."""

    @property
    def url(self) -> str: ...

    def create(self, path: str, data: bytes) -> bool:
        """Exclusive and atomic: False if the path exists already."""

    def put(self, path: str, data: bytes) -> None:
        """Atomic replace."""

    def get(self, path: str) -> bytes | None: ...

    def list(self, prefix: str = "") -> dict[str, int]:
        """Paths under a folder with their sizes in bytes."""

    def delete(self, path: str) -> None:
        """Does nothing if the path does not exist."""


class Remains(Enum):
    """Of a cluster that is silent, as far as its maker can prove it."""

    KEPT = "kept"
    """Or nothing is known that says otherwise."""
    UNKEPT = "unkept"
    """Something lives, but nobody is left who would start its head again."""
    NOTHING = "nothing"
    """All its processes are proven gone."""


class ClusterMaker(Protocol):
    """Whoever made the cluster and can make it again."""

    def remains(self) -> Remains: ...

    def keep(self) -> None:
        """Starts who keeps the head alive; harmless where he lives. Raises ClusterError."""

    def failed_start(self) -> str:
        """The newest node that was asked for of late and did not come, and why; empty where none is known."""

    def make(self) -> None:
        """Makes it again under the same name; harmless if it is there. Raises ClusterError."""

    def connect(self) -> RayCluster:
        """A client for the cluster as it is now (a new one may have another address or token)."""


class Clock(Protocol):
    def now(self) -> float:
        """Wall clock seconds, for records that people and other machines read."""

    def monotonic(self) -> float:
        """Own monotonic seconds, for ages."""

    def sleep(self, seconds: float) -> None: ...
