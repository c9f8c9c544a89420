"""Gathers everything that a decision about a run may depend on into one `RunView`. Called by `ops.supervise`.

Reads the run directory and asks the cluster; changes neither. Keeps in memory only what makes ages: when
each watched value was last seen to change, on the own clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from steadyray import contract
from steadyray.contract import EventKind, Progress

from ops import records
from ops.errors import AuthError, ClusterError, NotFoundError, UnreachableError
from ops.policy import failure, progress
from ops.policy.events import integer, number, text
from ops.policy.model import (
    Action,
    Api,
    Capacity,
    JobStatus,
    JobView,
    PastAction,
    RunState,
    RunView,
    Verdict,
    WorkerError,
)
from ops.policy.progress import Watch
from ops.policy.resubmission import WAITING_PHASES
from ops.policy.worker_errors import from_records
from ops.ports import Clock, ClusterMaker, RayCluster, Remains
from ops.presence import MARK
from ops.record import Recorder
from ops.spec import RunSpec, submission_id

LOG_PAUSE_SECONDS = 3.0
"""Between two looks at the driver's log; what was seen last survives the driver's node."""
CAPACITY_PAUSE_SECONDS = 2.0
QUIET_SECONDS = 3.0
"""Without progress for so long, the head is asked whether the driver's node still lives."""
NODE_PAUSE_SECONDS = 2.0
NODE_DIED = "The driver's node has died ({node}): {why}"
"""In Ray's own words, since the same rule judges it."""
LEASE = re.compile(r"attempts/(\d+)/lease\.json")
CHECKPOINT = re.compile(r"checkpoints/(\d+)-\d+-\d+/MANIFEST\.json")
LIBRARY_EVENTS = "events/driver-"
SPOKEN_BY_DRIVER = frozenset({"job", "exception", "log"})
"""Sources whose text is the driver's own; Ray's message about a job repeats the end of its log."""
QUOTED = frozenset({"exception", "exit"})
"""Sources of which a verdict's message quotes the driver's words; see `failure`."""
OWN_FOLDERS = ("attempts/", "actions/", "checkpoints/", "events/", "code/", "results/", "_probe/")
OWN_FILES = (contract.SPEC, contract.RESULT, contract.STOP_REQUEST, MARK, "report.html")


@dataclass
class Gatherer:
    """One run as one supervisor sees it."""

    spec: RunSpec
    record: Recorder
    maker: ClusterMaker
    clock: Clock
    cluster: RayCluster | None = None
    watch: Watch = field(default_factory=Watch)
    withheld: str = ""
    """Why no text of the driver may be stored or shown: a secret whose value cannot be taken out of it."""
    seen: list[PastAction] = field(default_factory=list)
    """The actions that the last look found. The number of the next act counts these: one that another
    supervisor completed since then answers the same state, and its claim must stand in our way."""
    log: str = ""
    """The driver's last lines as they may be stored and shown; `_heard` is what the rules are asked about."""
    _heard: str = ""
    _log_of: int = 0
    _log_due: float = 0.0
    _capacity: Capacity = field(default_factory=Capacity)
    _capacity_due: float = 0.0
    _node_due: float = 0.0
    _node_message: str = ""
    _done_actions: dict[str, PastAction] = field(default_factory=dict)
    _old_steps: dict[int, int] = field(default_factory=dict)
    _ids: dict[int, str] = field(default_factory=dict)

    def look(self) -> RunView:
        """Actions before leases: who sees an act completed must see what it made."""
        actions = self.seen = self.actions()
        attempts = self.record.store.list("attempts")
        attempt = max((int(m[1]) for p in attempts if (m := LEASE.fullmatch(p))), default=0)
        resumed = max((a.time for a in actions if a.action == Action.RESUME), default=self.spec.created)
        view = RunView(
            run=self.spec.name,
            budgets=self.spec.budgets,
            restart_ok=self.spec.restart_ok,
            finished=self._finished(),
            stop_requested=self.record.read(contract.STOP_REQUEST) is not None,
            run_seconds=max(0.0, self.clock.now() - resumed),
            attempt=attempt,
            history=tuple(
                a
                for a in actions
                if a.time >= resumed and (a.attempt < attempt or a.action != Action.RESUBMIT)
            ),
        )
        if view.finished:
            return replace(view, progress=self._progress(attempt, attempts))
        view = self._with_steps(view, attempts)
        view = self._with_cluster(view, attempts)
        return self._with_ages(self._with_end(view))

    def actions(self) -> list[PastAction]:
        found = []
        for path in sorted(self.record.store.list("actions")):
            action = self._done_actions.get(path)
            if action is None:
                action = records.past_action(self.record.read(path))
            if action is None:
                continue
            found.append(action)
            if action.completed:
                self._done_actions[path] = action
        return sorted(found, key=lambda a: (a.attempt, a.incident, a.k))

    def id(self, attempt: int) -> str:
        """From the lease where there is one: a folder that was moved has another url, the job has not."""
        if attempt not in self._ids:
            told = text(self.record.read(contract.lease(attempt)) or {}, "submission_id")
            if not told:
                return submission_id(self.spec, self.record.store.url, attempt)
            self._ids[attempt] = told
        return self._ids[attempt]

    # --- run directory ---
    def _finished(self) -> RunState | None:
        result = records.result(self.record.store)
        return RunState(result["state"]) if result else None

    def _with_steps(self, view: RunView, attempts: dict[str, int]) -> RunView:
        now = self._progress(view.attempt, attempts)
        best = now.step if now else 0
        for before in range(1, view.attempt):
            if before not in self._old_steps:
                old = self._progress(before, attempts)
                self._old_steps[before] = old.step if old else 0
            best = max(best, self._old_steps[before])
        steps = [int(m[1]) for p in self.record.store.list("checkpoints") if (m := CHECKPOINT.fullmatch(p))]
        hint = self.record.read(contract.failure(view.attempt)) if view.attempt else None
        return replace(
            view,
            progress=now,
            best_step=best,
            checkpoint_step=max(steps, default=0),
            hint=records.hint(hint),
            started=contract.started(view.attempt) in attempts,
            worker_errors=self._worker_errors(view.attempt, attempts),
            submitted=view.attempt > 0 and self.record.has_event(EventKind.ATTEMPT_SUBMITTED, view.attempt),
        )

    def _progress(self, attempt: int, attempts: dict[str, int]) -> Progress | None:
        if found := records.progress(self.record.read(contract.progress(attempt)) if attempt else None):
            return found
        folder = f"{contract.attempt_dir(attempt)}/ranks/"
        return from_ranks([self.record.read(p) or {} for p in attempts if p.startswith(folder)], attempt)

    def _worker_errors(self, attempt: int, attempts: dict[str, int]) -> tuple[WorkerError, ...]:
        path = contract.exceptions(attempt)
        told = (self.record.read(path) or {}) if path in attempts else {}
        records = told.get("exceptions")
        return from_records(records) if isinstance(records, list) else ()

    def keeps_state(self, checkpoint_step: int) -> bool:
        """Whether a restart can resume: by a checkpoint, by our library (which makes them in time), or by
        any file in the run directory that is not of our own schema, which the script then saved itself."""
        if checkpoint_step or self.spec.recipe:
            return True
        files = self.record.store.list("")
        return any(p.startswith(LIBRARY_EVENTS) or _foreign(p) for p in files)

    # --- cluster ---
    def client(self) -> RayCluster:
        """Raises ClusterError only: a cluster of which nothing is left is a silent one, to be made again."""
        if self.cluster is None:
            try:
                self.cluster = self.maker.connect()
            except NotFoundError as error:
                raise UnreachableError(str(error), hint=error.hint) from error
        return self.cluster

    def _with_cluster(self, view: RunView, attempts: dict[str, int]) -> RunView:
        try:
            job = self.client().job(self.id(view.attempt)) if view.attempt else None
            if view.attempt == 0:
                self.client().session()
        except AuthError:
            raise
        except ClusterError:
            api = self._how_silent()
            self.cluster = None  # a cluster that was made again may have another address and token
            remains = self.maker.remains()
            gone = api is Api.SILENT and remains is Remains.NOTHING
            return replace(view, api=api, cluster_gone=gone, keeper_gone=remains is Remains.UNKEPT)
        if job is not None and self._lost_its_node(view, job):
            job = replace(
                job,
                status=JobStatus.FAILED,
                error_type="JOB_SUPERVISOR_ACTOR_DIED",
                message=self._node_message,
            )
        self._fetch_log(view.attempt, job)
        view = replace(view, job=job)
        if not _waiting(view):
            return view
        waits = job is not None and job.status is JobStatus.PENDING
        capacity = self._fetch_capacity() if waits else Capacity()
        return replace(view, capacity=capacity, no_nodes=self.record.clean(self.maker.failed_start()))

    def _lost_its_node(self, view: RunView, job: JobView) -> bool:
        """Whether a job that is called running has lost its driver's node, and makes no progress.

        Once the head was restarted, its Jobs API notices such a loss only after 60 s (Ray 2.60), while its
        list of nodes has it within seconds. The two signals are that list and the standstill.
        """
        now = self.clock.monotonic()
        quiet = self.watch.age_of("progress", str(view.attempt) + _digest(view.progress), now)
        if job.status is not JobStatus.RUNNING or not job.driver_node or quiet < QUIET_SECONDS:
            self._node_message = ""
        elif now >= self._node_due:
            self._node_due = now + NODE_PAUSE_SECONDS
            try:
                nodes = [n for n in self.client().nodes() if n.id == job.driver_node and not n.alive]
            except ClusterError:
                return bool(self._node_message)
            self._node_message = NODE_DIED.format(node=job.driver_node, why=nodes[0].message) if nodes else ""
        return bool(self._node_message)

    def _how_silent(self) -> Api:
        try:
            self.client().session()
        except ClusterError:
            return Api.SILENT
        return Api.PARTIAL

    def _fetch_log(self, attempt: int, job: JobView | None) -> None:
        """The last tail that could be had is kept: a lost node takes its logs along."""
        if attempt != self._log_of:
            self.log, self._heard, self._log_of, self._log_due = "", "", attempt, 0.0
        now = self.clock.monotonic()
        if job is None or (now < self._log_due and not job.status.ended):
            return
        self._log_due = now + LOG_PAUSE_SECONDS
        try:
            tail = self.record.clean(self.client().log_tail(self.id(attempt)), cut=True)
        except ClusterError:
            return
        if tail and tail != self._heard:
            self._heard = tail
            self._keep(contract.evidence(attempt, "driver.log"), tail)

    def shown(self, text: str) -> str:
        """A driver's text as it may be stored and shown."""
        return self.withheld or self.record.clean(text)

    def _keep(self, path: str, tail: str) -> None:
        """What a supervisor that could clean it has saved is better than our notice."""
        if not self.withheld:
            self.log = tail
            self.record.store.put(path, tail.encode())
            return
        self.record.store.create(path, self.withheld.encode())
        self.log = (self.record.store.get(path) or b"").decode(errors="replace")

    def _fetch_capacity(self) -> Capacity:
        now = self.clock.monotonic()
        if now >= self._capacity_due:
            asked = dict(self.spec.driver_resources)
            if self.spec.driver_cpus:
                asked["CPU"] = self.spec.driver_cpus
            try:
                self._capacity = self.client().capacity(asked)
            except ClusterError:
                return self._capacity
            self._capacity_due = now + CAPACITY_PAUSE_SECONDS
        return self._capacity

    # --- judgements that need several of the above ---
    def _with_end(self, view: RunView) -> RunView:
        lost = view.api is Api.ANSWERS and view.job is None and (view.submitted or view.started)
        ended = view.job is not None and view.job.status.ended
        if not (lost or ended or view.cluster_gone) or (view.job and view.job.status is JobStatus.SUCCEEDED):
            return view
        view = replace(view, keeps_state=self.keeps_state(view.checkpoint_step))
        if not self._heard and view.attempt:
            saved = self.record.store.get(contract.evidence(view.attempt, "driver.log"))
            self.log = self._heard = saved.decode(errors="replace") if saved else ""
        verdict = self._verdict(view, lost)
        if self.withheld:
            verdict = without_words(verdict, self.withheld)
            view = replace(view, job=replace(view.job, message=self.withheld) if view.job else None)
        return replace(view, verdict=verdict)

    def _verdict(self, view: RunView, lost: bool) -> Verdict:
        said = ""
        if view.cluster_gone:
            said = "the cluster's processes are gone"
        elif lost:
            said = "the head answers and does not know the job"
        acts = [a for a in view.history if a.attempt == view.attempt and a.action == Action.STOP]
        job = replace(view.job, message=self.record.clean(view.job.message, cut=True)) if view.job else None
        hint = replace(view.hint, message=self.record.clean(view.hint.message)) if view.hint else None
        return failure.classify(
            failure.gather_evidence(
                job=job,
                log=self._heard,
                hint=hint,
                incident=f"{acts[0].failure_class}: {acts[0].message}" if acts else "",
                api=said,
                now=self.clock.now(),
            )
        )

    def _with_ages(self, view: RunView) -> RunView:
        now = self.clock.monotonic()
        of = str(view.attempt)
        waiting = "yes" if _waiting(view) else "no"
        self.watch = self.watch.observe(
            now,
            progress=of + _digest(view.progress),
            log=of + hashlib.sha256(self._heard.encode()).hexdigest(),
            job=of + progress.job_value(view.job.status if view.job else None),
            api=progress.api_value(view.api),
            waiting=of + waiting,
            ended=of + str(view.verdict is not None),
        )
        age = self.watch.age
        return replace(
            view,
            progress_age=age("progress", now),
            log_age=age("log", now),
            pending_age=self.watch.age_of("waiting", of + "yes", now),
            api_age=self.watch.age_of("api", "silent", now),
            unknown_age=self.watch.age_of("job", of + "unknown", now),
            incident_age=self.watch.age_of("ended", of + "True", now),
        )


def without_words(verdict: Verdict, notice: str) -> Verdict:
    """The same judgement without anything that the driver wrote to its log."""
    evidence = tuple(
        replace(fact, text=notice) if fact.source in SPOKEN_BY_DRIVER else fact for fact in verdict.evidence
    )
    quotes = any(fact.source in QUOTED for fact in verdict.evidence)
    return replace(
        verdict, message=f"{verdict.rule} ({notice})" if quotes else verdict.message, evidence=evidence
    )


def _foreign(path: str) -> bool:
    return not path.startswith(OWN_FOLDERS) and path not in OWN_FILES


def _waiting(view: RunView) -> bool:
    is_pending = view.job is not None and view.job.status is JobStatus.PENDING
    return is_pending or (view.progress is not None and view.progress.phase in WAITING_PHASES)


def _digest(seen: Progress | None) -> str:
    return hashlib.sha256(json.dumps(seen.to_json(), sort_keys=True).encode()).hexdigest() if seen else ""


def from_ranks(told: list[dict[str, Any]], attempt: int) -> Progress | None:
    """Progress of a script that reports by rank: the run is where its last rank is."""
    ranks = [r for r in told if number(r, "step") is not None]
    if not ranks:
        return None
    first = next((r for r in ranks if r.get("rank") == 0), ranks[0])
    return Progress(
        step=min(integer(r, "step") or 0 for r in ranks),
        loss=number(first, "loss"),
        world_size=len(ranks),
        attempt=attempt,
        phase=text(first, "phase") or "train",
        ranks=ranks,
        time=max(number(r, "time") or 0.0 for r in ranks),
    )
