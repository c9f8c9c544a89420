"""Stand-ins for store, cluster and clock that pass the same contract tests as the real adapters.

For the policy's simulations, where thousands of runs must end in seconds. They keep the real ones' manners:
a submission id is taken once, a pending job cannot be stopped, a lost head forgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ops.errors import BadRequestError, UnreachableError
from ops.policy.model import Capacity, JobStatus, JobView
from ops.ports import JobRequest, NodeView, Remains


@dataclass
class MemoryStore:
    files: dict[str, bytes] = field(default_factory=dict)
    url: str = "memory/run"

    def create(self, path: str, data: bytes) -> bool:
        return self.files.setdefault(path, data) is data

    def put(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def get(self, path: str) -> bytes | None:
        return self.files.get(path)

    def list(self, prefix: str = "") -> dict[str, int]:
        under = f"{prefix.rstrip('/')}/" if prefix else ""
        return {p: len(d) for p, d in sorted(self.files.items()) if p.startswith(under)}

    def delete(self, path: str) -> None:
        self.files.pop(path, None)


@dataclass
class FakeClock:
    """Time passes only when somebody sleeps or says so."""

    seconds: float = 1_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class FakeCluster:
    """A head that can be silenced and can forget. Tests move its jobs on."""

    jobs: dict[str, JobView] = field(default_factory=dict)
    requests: dict[str, JobRequest] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    packages: dict[str, bytes] = field(default_factory=dict)
    silent: bool = False
    head: str = "head1"
    """Another one for each start of the head."""
    dead_nodes: set[str] = field(default_factory=set)

    def _answer(self) -> None:
        if self.silent:
            raise UnreachableError("nothing answers")

    def session(self) -> str:
        self._answer()
        return "session"

    def submit(self, request: JobRequest) -> bool:
        self._answer()
        if (there := self.requests.get(request.submission_id)) is not None:
            if there.entrypoint != request.entrypoint:
                raise BadRequestError(f"submission id {request.submission_id} is taken by another command")
            return False
        self.requests[request.submission_id] = request
        self.jobs[request.submission_id] = JobView(JobStatus.PENDING)
        return True

    def job(self, submission_id: str) -> JobView | None:
        self._answer()
        return self.jobs.get(submission_id)

    def jobs_of(self, run_url: str) -> tuple[tuple[str, JobStatus], ...]:
        self._answer()
        asked = self.requests.items()
        return tuple((id, self.jobs[id].status) for id, r in asked if f" {run_url} -- " in r.entrypoint)

    def log_tail(self, submission_id: str, lines: int = 400) -> str:
        self._answer()
        return "".join(self.logs.get(submission_id, "").splitlines(keepends=True)[-lines:])

    def stop(self, submission_id: str) -> None:
        self._answer()
        message = "Job was intentionally stopped."
        self.move(submission_id, JobStatus.RUNNING, JobStatus.STOPPED, message=message)

    def end_pending(self, submission_id: str) -> None:
        self._answer()
        self.move(submission_id, JobStatus.PENDING, JobStatus.FAILED, error_type="JOB_SUPERVISOR_ACTOR_DIED")

    def upload_package(self, name: str, data: bytes) -> str:
        self._answer()
        self.packages[name] = data
        return f"gcs://{name}"

    def nodes(self) -> tuple[NodeView, ...]:
        self._answer()
        alive = "node1" not in self.dead_nodes
        return (
            NodeView(self.head, "host0", alive=True, is_head=True),
            NodeView("node1", "host1", alive, is_head=False, resources={"CPU": 1.0}),
        )

    def capacity(self, asked: dict[str, float]) -> Capacity:
        self._answer()
        return Capacity(asked, {"CPU": 1.0}, {"CPU": 1.0})

    # --- what tests do to it ---
    def move(
        self,
        submission_id: str,
        before: JobStatus,
        after: JobStatus,
        *,
        message: str = "",
        error_type: str = "",
        exit_code: int | None = None,
    ) -> bool:
        """Move a job on if it is where one thinks it is."""
        job = self.jobs.get(submission_id)
        if job is None or job.status is not before:
            return False
        job = replace(job, status=after, message=message, error_type=error_type, driver_node="node1")
        self.jobs[submission_id] = replace(job, exit_code=exit_code)
        return True

    def forget(self) -> None:
        """The head came back without its state."""
        self.jobs.clear()
        self.requests.clear()
        self.packages.clear()

    def running(self) -> list[str]:
        return [name for name, job in self.jobs.items() if not job.status.ended]


@dataclass
class FakeMaker:
    cluster: FakeCluster
    is_gone: bool = False
    made: int = 0
    keeper_gone: bool = False
    kept: int = 0
    no_nodes: str = ""

    def connect(self) -> FakeCluster:
        return self.cluster

    def remains(self) -> Remains:
        if self.is_gone:
            return Remains.NOTHING
        return Remains.UNKEPT if self.keeper_gone else Remains.KEPT

    def keep(self) -> None:
        """The new keeper starts the head again, which kept its state."""
        self.kept += 1
        self.keeper_gone = self.cluster.silent = False

    def failed_start(self) -> str:
        return self.no_nodes

    def make(self) -> None:
        self.made += 1
        self.is_gone = False
        self.cluster.forget()
        self.cluster.silent = False
