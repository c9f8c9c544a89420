"""One tick of a run's supervisor: gather, decide, act at most once, record.

The command line loops over `Supervisor.tick`; an operator may call it as well. Any number of supervisors
may look after one run: every act is claimed by an exclusive create, and what a killed one left half done
is continued by the next, because each step of it is idempotent.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from steadyray import contract
from steadyray.contract import EventKind, FailureClass

from ops import records
from ops.claims import Claims, asked
from ops.errors import BadRequestError, ClusterError, RunGoneError, StoreError, UsageError
from ops.fleet import Fleet
from ops.gather import Gatherer
from ops.notes import Notes, incident_id, incident_of
from ops.outages import Outages
from ops.packing import ENTRY_FOLDER
from ops.policy import lifecycle
from ops.policy.model import Action, Decision, Incident, Mode, RunSnapshot, RunState, RunView, Verdict
from ops.policy.resubmission import decide, state_of
from ops.ports import Clock, ClusterMaker, JobRequest, RunStore
from ops.presence import Presence
from ops.record import Recorder
from ops.restraints import Restraints
from ops.spec import RunSpec

K = EventKind

RAY_TRAIN_CALLBACK = f"{ENTRY_FOLDER}.ray_train.TrainCallback"
TICK_SECONDS = 1.0
FAST_TICK_SECONDS = 0.3
"""While an attempt is on its way or being replaced: here a second is a second of lost training."""
STORE_PATIENCE_SECONDS = 300.0
REMAKE_PAUSE_SECONDS = 10.0
"""Between two tries to make a cluster again; for how long is the budget of a silent one, `blind_seconds`."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What a tick came to, and when the next one is due."""

    snapshot: RunSnapshot
    decision: Decision
    wake_after: float
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Unmade:
    """A cluster that could not be made again; times on the own monotonic clock."""

    since: float
    due: float
    why: str

    def wait(self, instead_of: Decision) -> Decision:
        text = f"The cluster could not be made again: {self.why}. Tries again."
        return Decision(Action.WAIT, "ClusterNotMade", text, verdict=instead_of.verdict)


@dataclass
class Supervisor:
    """Looks after one run. `hidden` are values that must appear nowhere (the token, secret variables)."""

    spec: RunSpec
    store: RunStore
    maker: ClusterMaker
    clock: Clock
    environment: dict[str, str] = field(default_factory=dict)
    """Further variables of the job, from the cluster's adapter."""
    hidden: tuple[str, ...] = ()
    announce: Callable[[RunSnapshot], None] = lambda _: None
    """Told before an act that takes long, so that nobody looks at an old picture for a minute."""
    observe: bool = False
    """This machine only observes, whatever the run's spec says."""
    fleet: Fleet | None = None
    """The breaker over all runs beside this one."""

    def __post_init__(self) -> None:
        secrets = tuple(os.environ[name] for name in self.spec.secret_env if os.environ.get(name))
        self.record = Recorder(self.store, self.clock, (*self.hidden, *secrets))
        unset = ", ".join(name for name in self.spec.secret_env if not os.environ.get(name))
        withheld = f"withheld: set {unset} to see it" if unset else ""
        self.gatherer = Gatherer(self.spec, self.record, self.maker, self.clock, withheld=withheld)
        self.notes = Notes(self.gatherer)
        self.claims = Claims(self.gatherer)
        mode = Mode.OBSERVE if self.observe else self.spec.mode
        self.restraints = Restraints(self.notes, mode, self.fleet)
        self.outages = Outages(self.gatherer)
        self.presence = Presence(self.record)
        self.state: RunState | None = None
        self._last: RunSnapshot | None = None
        self._store_failed: float | None = None
        self._unmade: Unmade | None = None
        self._keeping = False

    def tick(self) -> Tick:
        """Bounded: at most one act. Raises AuthError and what only a person can mend; silence is no error."""
        try:
            tick = self._tick()
        except StoreError as error:
            return self._store_silent(error)
        self._store_failed = None
        self._last = tick.snapshot
        return tick

    def _store_silent(self, error: StoreError) -> Tick:
        """One bad answer of the storage ends no run of days; one that stays away is a person's matter."""
        if isinstance(error, RunGoneError):
            error = RunGoneError(self.spec.name, self.store.url, self.spec.cluster)
        now = self.clock.monotonic()
        self._store_failed = self._store_failed or now
        if self._last is None or now - self._store_failed > STORE_PATIENCE_SECONDS:
            raise error
        said = self.record.clean(str(error))
        gone = isinstance(error, RunGoneError)
        text = f"{said}; {error.hint}" if gone else f"The run storage did not answer: {said}. Tries again."
        decision = Decision(Action.WAIT, FailureClass.STORAGE_TRANSIENT, text)
        return Tick(replace(self._last, message=text), decision, TICK_SECONDS)

    def _tick(self) -> Tick:
        if self._last is not None and self.store.get(contract.SPEC) is None:  # a job may make a new folder
            raise RunGoneError(self.spec.name, self.store.url)
        self.presence.renew(self.clock.monotonic(), self.clock.now())
        view = self.gatherer.look()
        decision = self._patient(view, decide(view))
        try:
            self.notes.running(view)
            self.outages.look(view)
            decision = self._act(view, decision)
        except BadRequestError as error:
            verdict = Verdict(
                FailureClass.BAD_ENVIRONMENT, "RefusedByRay", self.record.clean(str(error)), 0.9
            )
            decision = Decision(
                Action.FINISH, "NotRetried", verdict.message, verdict=verdict, final=RunState.FAILED
            )
            self._finish(view, decision)
        except ClusterError as error:
            text = f"The cluster did not take it: {self.record.clean(str(error))}. Tries again."
            decision = Decision(Action.WAIT, FailureClass.CONTROL_PLANE_BLIND, text)
        return self._shown(view, decision)

    def explain(self) -> tuple[RunView, Decision]:
        """What would be decided now, without doing it."""
        view = self.gatherer.look()
        return view, self.restraints.would(view, decide(view))

    # --- acts -----------------------------------------------------------------------------------------
    def _act(self, view: RunView, decision: Decision) -> Decision:
        if (held := self.restraints.hold(view, decision)) is not None:
            return held
        match decision.action:
            case Action.SUBMIT:
                self._submit(view, decision)
            case Action.FINISH:
                self._finish(view, decision)
            case Action.STOP | Action.RESUBMIT | Action.RECREATE_CLUSTER:
                return self._claimed(view, decision)
            case Action.RESTART_KEEPER:
                return self._keep(view, decision)
            case Action.WAIT:
                self.notes.waiting(view, decision)
            case Action.NONE if decision.final is not None:
                self.record.finished()
        return decision

    def _keep(self, view: RunView, decision: Decision) -> Decision:
        """Noted before the act and once for all its tries: it is tried each second until a disk has room."""
        if (held := self.restraints.mark(view, decision)) is not None:
            return held
        decision = self.restraints.with_trouble(decision)
        if not self._keeping:
            self.notes.unclaimed(view, decision)
        self._keeping = True
        self.maker.keep()
        self._keeping = False
        return decision

    def _claimed(self, view: RunView, decision: Decision) -> Decision:
        """Evidence, then the claim, then its event, then the act, then its completion."""
        incident = incident_of(view, decision)
        stops = asked(view, Action.STOP)
        if decision.action is Action.STOP and stops:
            return self._stop_again(view, decision)
        if not stops or decision.action is Action.RESUBMIT:
            self.notes.save_evidence(view, decision, incident)
        claim = self.claims.next(view, decision, incident)
        if (held := self.restraints.mark(view, decision)) is not None:
            return held
        decision = self.restraints.with_trouble(decision)
        if (instead := self.claims.take(claim, decision)) is not None:
            return instead
        self.notes.action(view, decision, incident, claim.k)
        match decision.action:
            case Action.STOP:
                self._stop(view, decision)
            case Action.RECREATE_CLUSTER:
                self.announce(self._shown(view, decision).snapshot)
                if (unmade := self._make(decision)) is not None:
                    self.notes.waiting(view, unmade)
                    return unmade
            case _:
                self.notes.end_attempt(view, decision.verdict)
                self._lease(view.attempt + 1)
        self.claims.complete(claim)
        return decision

    def _make(self, decision: Decision) -> Decision | None:
        """Makes the cluster; where that fails, a wait with the reason, and the claim stays open."""
        try:
            self.maker.make()
        except ClusterError as error:
            now = self.clock.monotonic()
            since = self._unmade.since if self._unmade else now
            self._unmade = Unmade(since, now + REMAKE_PAUSE_SECONDS, self.record.clean(str(error)))
            return self._unmade.wait(decision)
        self._unmade = None
        self.gatherer.cluster = None
        return None

    def _patient(self, view: RunView, decision: Decision) -> Decision:
        """A taken port or a full disk passes: a try that failed costs a pause, not the run."""
        unmade, now = self._unmade, self.clock.monotonic()
        if unmade is None or decision.action is not Action.RECREATE_CLUSTER:
            return decision
        tried = now - unmade.since
        if tried > view.budgets.blind_seconds:
            text = f"The cluster could not be made again for {tried:.0f} s: {unmade.why}."
            return replace(
                decision, action=Action.FINISH, reason="ClusterNotMade", message=text, final=RunState.FAILED
            )
        return unmade.wait(decision) if now < unmade.due else decision

    def _stop(self, view: RunView, decision: Decision) -> None:
        submission = self.gatherer.id(view.attempt)
        if decision.details.get("pending"):
            self.gatherer.client().end_pending(submission)
        else:
            self.gatherer.client().stop(submission)

    def _stop_again(self, view: RunView, decision: Decision) -> Decision:
        """Already asked for: repeat it (a pending job may have begun to run in between), and wait."""
        begun = self.claims.unfinished(view, Action.STOP)
        for claim in begun:  # whoever made it may have been killed before it could say so
            self.notes.action(view, decision, claim.incident, claim.k)
        self._stop(view, decision)
        for claim in begun:
            self.claims.complete(claim)
        return Decision(Action.WAIT, "Stopping", "Waits for the job to end.", verdict=decision.verdict)

    def _submit(self, view: RunView, decision: Decision) -> None:
        attempt = max(1, view.attempt)
        if view.attempt == 0 and not self._lease(attempt):
            return  # another supervisor was faster; the next look shows its attempt
        self._note_claimed(attempt)  # whoever made the lease may have been killed before it could say so
        cluster = self.gatherer.client()
        code = self.store.get(self.spec.code_path)
        if code is None:
            raise UsageError(
                f"run {self.spec.name} has lost its code", hint="submit it again under a new name"
            )
        uri = cluster.upload_package(f"_ray_pkg_{self.spec.code_hash[:32]}.zip", code)
        cluster.submit(self._request(attempt, uri))
        self.record.attempt_event(
            K.ATTEMPT_SUBMITTED, attempt, attempt=attempt, submission_id=self.gatherer.id(attempt)
        )

    def _request(self, attempt: int, code_uri: str) -> JobRequest:
        run_dir = self.store.url
        command = ["python", f"{ENTRY_FOLDER}/entry.py", self.spec.name, str(attempt), run_dir, "--"]
        secret = {name: self._secret(name) for name in self.spec.secret_env}
        theirs = self.spec.env.get(contract.ENV_RAY_TRAIN)
        own = {
            contract.ENV_RAY_TRAIN: ",".join(filter(None, (theirs, RAY_TRAIN_CALLBACK))),
            contract.ENV_RUN: self.spec.name,
            contract.ENV_ATTEMPT: str(attempt),
            contract.ENV_RUN_DIR: run_dir,
            contract.ENV_SECRETS: ",".join(self.spec.secret_env),
            "PYTHONUNBUFFERED": "1",
        }
        return JobRequest(
            submission_id=self.gatherer.id(attempt),
            entrypoint="exec " + shlex.join([*command, *self.spec.entrypoint]),
            runtime_env={
                "working_dir": code_uri,
                "env_vars": {**self.environment, **self.spec.env, **secret, **own},
            },
            metadata={"steadyray_run": self.spec.name, "steadyray_attempt": str(attempt)},
            cpus=self.spec.driver_cpus,
            resources=self.spec.driver_resources,
        )

    def _secret(self, name: str) -> str:
        value = os.environ.get(name)
        if value is None:
            raise UsageError(
                f"run {self.spec.name} needs the secret variable {name}, which is not set here",
                hint=f"set {name} and type: steadyray job run {self.spec.name}",
            )
        return value

    def _lease(self, attempt: int) -> bool:
        """Claim an attempt. There is one lease a number, so there are never two attempts at once."""
        lease = {
            "attempt": attempt,
            "submission_id": self.gatherer.id(attempt),
            "cluster": self.spec.cluster,
            "supervisor": self.record.id,
            "time": self.clock.now(),
        }
        won = self.record.create(contract.lease(attempt), lease)
        self._note_claimed(attempt)
        return won

    def _note_claimed(self, attempt: int) -> None:
        self.record.attempt_event(
            K.ATTEMPT_CLAIMED,
            attempt,
            attempt=attempt,
            cluster=self.spec.cluster,
            submission_id=self.gatherer.id(attempt),
        )

    def _finish(self, view: RunView, decision: Decision) -> None:
        verdict = decision.verdict
        if verdict is not None and view.attempt:
            incident = incident_id(view.attempt)
            self.notes.save_evidence(view, decision, incident)
            k = 1 + sum(1 for a in self.gatherer.seen if a.incident == incident)
            self.notes.action(view, decision, incident, k)
        if view.attempt:
            self.notes.end_attempt(view, verdict)
        result = {
            "state": decision.final,
            "failure_class": verdict.failure_class if verdict else None,
            "rule": verdict.rule if verdict else None,
            "reason": decision.reason,
            "message": decision.message,
            "hint": decision.next,
            "attempt": view.attempt,
            "step": view.best_step,
            "exit_code": view.job.exit_code if view.job else None,
            "time": self.clock.now(),
        }
        self.record.create(contract.RESULT, result)
        self.record.finished()

    # --- what a person sees ---------------------------------------------------------------------------
    def _shown(self, view: RunView, decision: Decision) -> Tick:
        state = state_of(view, decision)
        message = decision.message
        if self.state is not None and not lifecycle.legal(self.state, state):
            message += f" (unexpected move from {self.state} to {state})"
        self.state = state
        result = records.result(self.store) or {}
        snapshot = RunSnapshot(
            run=self.spec.name,
            state=state,
            attempt=view.attempt,
            progress=view.progress,
            message=str(result.get("message") or message),
            incidents=self._incidents(view),
            started=self.spec.created,
            waiting=message if state is RunState.WAITING else "",
            cluster=self.spec.cluster,
            exit_code=result.get("exit_code"),
            failure_class=str(result.get("failure_class") or ""),
            log_line=last_line(self.gatherer.log),
        )
        finished = decision.final is not None and bool(result)
        fast = state in {RunState.SUBMITTING, RunState.STARTING, RunState.RECOVERING, RunState.PENDING}
        return Tick(snapshot, decision, FAST_TICK_SECONDS if fast else TICK_SECONDS, finished)

    def _incidents(self, view: RunView) -> tuple[Incident, ...]:
        return tuple(
            Incident(a.incident, a.attempt, a.failure_class, a.message, a.action, a.time)
            for a in self.gatherer.actions()
            if a.failure_class
        )


def last_line(log: str) -> str:
    return next((line for line in reversed(log.splitlines()) if line.strip()), "")[:300]
