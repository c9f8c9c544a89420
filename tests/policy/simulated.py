"""A whole run without processes: the real supervisor over a store, a clock and a cluster in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from mortal_store import Killed, MortalStore
from steadyray import contract

from ops.adapters.fakes import FakeClock, FakeCluster, FakeMaker
from ops.fleet import Fleet
from ops.policy.breaker import Limits
from ops.policy.lifecycle import legal
from ops.policy.model import Action, Budgets, JobStatus, Mode
from ops.spec import RunSpec
from ops.submission import create
from ops.supervise import Supervisor

TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1\n'
ENDINGS: dict[str, dict[str, Any]] = {
    "user error": {"log": TRACE + "ValueError: bug\n", "exit_code": 1},
    "driver node": {"error_type": "JOB_SUPERVISOR_ACTOR_DIED", "message": "its node has died"},
    "killed": {"log": "step\n", "exit_code": -9},
    "preempted": {"log": TRACE + "ActorDiedError: the actor's node was preempted: x\n", "exit_code": 1},
    "environment": {"error_type": "RUNTIME_ENV_SETUP_FAILURE"},
}


@dataclass
class World:
    """One run, its cluster, and whoever looks after it; checks what must hold after each look."""

    supervisors: int
    store: MortalStore = field(default_factory=MortalStore)
    clock: FakeClock = field(default_factory=FakeClock)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    step: int = 0
    mode: Mode = Mode.ACT
    limits: Limits | None = None

    def __post_init__(self) -> None:
        self.maker = FakeMaker(self.cluster)
        self.spec = RunSpec(
            schema=1, name="r", entrypoint=("python", "t.py"), code_hash="c", created=self.clock.now(),
            budgets=Budgets(wait_seconds=120.0, blind_seconds=120.0), mode=self.mode,
        )  # fmt: skip
        self.beside = MortalStore(main=self.store, url="memory/_fleet")
        self.fleet = Fleet(lambda: self.beside, self.clock)
        if self.limits is not None:
            self.fleet.limit(self.limits)
        create(self.store, self.clock, self.spec, b"zip")
        self.staff = [self.fresh() for _ in range(self.supervisors)]
        self.decisions: list[tuple[int, Any]] = []

    def fresh(self) -> Supervisor:
        return Supervisor(self.spec, self.store, self.maker, self.clock, fleet=self.fleet)

    def look(self) -> None:
        for place, supervisor in enumerate(self.staff):
            before = supervisor.state
            try:
                tick = supervisor.tick()
            except Killed:
                self.staff[place] = self.fresh()
                continue
            assert before is None or legal(before, tick.snapshot.state), (before, tick.snapshot.state)
            if tick.decision.action in (Action.RESUBMIT, Action.FINISH):
                self.decisions.append((tick.snapshot.attempt, tick.decision))
            self.clock.sleep(0.3)
        self.check()

    def check(self) -> None:
        assert len(self.cluster.running()) <= 1, "two attempts at once"
        numbers = sorted(
            int(p.split("/")[1]) for p in self.store.list("attempts") if p.endswith("lease.json")
        )
        assert numbers == list(range(1, len(numbers) + 1)), "attempts are numbered without a gap"
        for _, decision in self.decisions:
            assert decision.budget_left is None or decision.budget_left >= 0

    @property
    def newest(self) -> str:
        ids = [
            json.loads(d)["submission_id"] for p, d in self.store.files.items() if p.endswith("lease.json")
        ]
        return max(ids, key=lambda i: int(i.rsplit("-", 1)[1]), default="")

    @property
    def attempt(self) -> int:
        return int(self.newest.rsplit("-", 1)[1]) if self.newest else 0

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(d) for p, d in self.store.files.items() if p.startswith("events/")]

    def data(self, kind: str) -> list[dict[str, Any]]:
        found = sorted((e for e in self.events() if e["kind"] == kind), key=lambda e: (e["time"], e["seq"]))
        return [e["data"] for e in found]

    def acts(self) -> list[str]:
        return [data["action"] for data in self.data("ActionTaken")]

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events()]

    def job_runs(self) -> bool:
        job = self.cluster.jobs.get(self.newest)
        return job is not None and job.status is JobStatus.RUNNING

    def happen(self, event: str, number: int) -> None:
        if event in ENDINGS:
            self.end_job(event)
        else:
            getattr(self, f"on_{event}")(number)

    def end_job(self, event: str) -> None:
        if self.job_runs():
            ending = dict(ENDINGS[event])
            self.cluster.logs[self.newest] = ending.pop("log", "")
            self.cluster.move(self.newest, JobStatus.RUNNING, JobStatus.FAILED, **ending)

    def on_run(self, _: int) -> None:
        if self.cluster.move(self.newest, JobStatus.PENDING, JobStatus.RUNNING):
            self.store.files[contract.started(self.attempt)] = b"{}"

    def on_steps(self, number: int) -> None:
        if self.job_runs():
            self.step += number
            self.store.files[contract.progress(self.attempt)] = json.dumps({"step": self.step}).encode()

    def on_success(self, _: int) -> None:
        self.cluster.move(self.newest, JobStatus.RUNNING, JobStatus.SUCCEEDED, exit_code=0)

    def on_checkpoint(self, _: int) -> None:
        if self.step:
            folder = contract.checkpoint(self.step, self.attempt, 1)
            self.store.files[f"{folder}/{contract.MANIFEST}"] = b"{}"

    def on_silence(self, _: int) -> None:
        self.cluster.silent = True

    def on_answer(self, _: int) -> None:
        self.cluster.silent = self.maker.is_gone

    def on_forget(self, _: int) -> None:
        self.cluster.forget()

    def on_gone(self, _: int) -> None:
        self.cluster.silent = self.maker.is_gone = True
        self.cluster.forget()

    def on_stop(self, _: int) -> None:
        self.store.files.setdefault(contract.STOP_REQUEST, b"{}")

    def on_kill(self, number: int) -> None:
        self.store.fuse = number

    def on_wait(self, number: int) -> None:
        self.clock.sleep(float(number * 10))

    def finish(self) -> dict[str, Any]:
        """No more faults: the run must come to an end of its own, whatever happened before."""
        self.store.fuse = -1
        for _ in range(400):
            if not self.maker.is_gone:
                self.cluster.silent = False
            self.happen("run", 0)
            self.happen("success", 0)
            self.look()
            self.clock.sleep(3.0)
            if data := self.store.get(contract.RESULT):
                result: dict[str, Any] = json.loads(data)
                return result
        raise AssertionError("the run never ends")
