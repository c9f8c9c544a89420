"""The driver of a training: keeps a group of ranks and warm spares going until the last step is done.

One loop: gather what the members say, ask the pure `recovery.decide`, carry out the one answer, record it.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from steadyray import contract
from steadyray.chronicle import Chronicle
from steadyray.contract import FailureClass
from steadyray.members import Handle, Members
from steadyray.messages import Assignment, MemberError, MemberState, Rendezvous
from steadyray.recovery import (
    FREE,
    Abort,
    Answer,
    Break,
    Breaking,
    Done,
    End,
    Fail,
    GroupView,
    Keep,
    Lose,
    Loss,
    Patience,
    Regroup,
    SaveOften,
    Wait,
    decide,
)

SUSPECT_SECONDS = 2.0
"""A rank that was replaced as hung and comes back within this time was only slow: it becomes a spare."""

PASS_SECONDS = 1.0
"""What one pass of the driver's loop may take. What exceeds it is time in which the driver did not look."""

WAITING_SECONDS = 10.0
"""Too few members for longer than a start takes: the run waits for capacity, and says so."""

SPAWN_SECONDS = 1.0
"""Pause before a member is started in place of one that died while it started; doubles each time."""


class TrainingFailed(Exception):
    """The training cannot go on inside this job; the supervisor judges what happens next."""

    def __init__(self, failure: contract.Failure) -> None:
        super().__init__(f"{failure.failure_class}: {failure.message}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Plan:
    """What the user asked for."""

    workers_min: int
    workers_max: int
    spares: int = 0
    backend: str | None = None
    """None: nccl where every rank sees a GPU of its own, else gloo."""
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A replaced rank whose process may still run: since when, after which step, its stacks being read."""

    since: float
    step: int
    stacks: Future[None]


class Controller:
    def __init__(self, plan: Plan, members: Members, chronicle: Chronicle) -> None:
        self._plan = plan
        self._members = members
        self._chronicle = chronicle
        self._generation = 0
        self._ranks: tuple[str, ...] = ()
        self._breaking: Breaking | None = None
        now = time.monotonic()
        self._last_step, self._seen_step, self._last_step_at = 0, 0, now
        self._phase_at = now
        self._waiting_since = now
        self._enough_since: float | None = None
        self._charged = 0
        self._false_alarms = 0
        self._hangs: list[tuple[int, str]] = []
        self._suspects: dict[str, Suspect] = {}
        self._saves_often = 0
        """Generation whose rank 0 was told to."""
        self._short = False
        """Whether there are too few members to go on."""
        self._failed_starts = 0
        self._spawn_after = 0.0
        self._passed = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Train to the end; returns what rank 0's `train` returned. Raises TrainingFailed."""
        while True:
            self._spawn()
            self._members.gather(calm=self._makes_steps and self._breaking is None)
            self._excuse()
            self._notice()
            answer = decide(self._view())
            self._short = isinstance(answer, Wait)
            if isinstance(answer, Done):
                return self._done(answer.member)
            self._carry_out(answer)
            waits = self._short and time.monotonic() - self._waiting_since > WAITING_SECONDS
            self._chronicle.write_progress(self._members.handles, self._ranks, self._generation, waits=waits)

    def _excuse(self) -> None:
        """A driver that stood still (a paused machine, swap) must not hold its own silence against others."""
        now = time.monotonic()
        stood, self._passed = now - self._passed - PASS_SECONDS, now
        if stood <= 0.0:
            return
        self._last_step_at += stood
        self._phase_at += stood
        self._waiting_since += stood
        if self._enough_since is not None:
            self._enough_since += stood
        if self._breaking is not None:
            self._breaking = replace(self._breaking, since=self._breaking.since + stood)
        self._suspects = {m: replace(s, since=s.since + stood) for m, s in self._suspects.items()}
        for handle in self._members.handles.values():
            handle.heard = min(now, handle.heard + stood)

    @property
    def _makes_steps(self) -> bool:
        """Whether the present generation has made a step of its own."""
        return self._last_step > self._chronicle.generation_from

    def _carry_out(self, answer: Answer) -> None:
        match answer:
            case Fail():
                raise TrainingFailed(self._failure(answer))
            case Break():
                self._break(answer)
            case Abort():
                self._abort()
            case Lose(lost):
                self._lose(lost)
            case Regroup():
                self._regroup(answer)
            case End():
                for member in self._ranks:
                    self._members.end(self._members.handles[member])
            case SaveOften() if self._saves_often != self._generation:
                self._saves_often = self._generation
                self._members.save_often(self._members.handles[self._ranks[0]], self._generation)
            case Wait(_, message):
                self._chronicle.say(message)
            case Keep() | Done() | SaveOften():
                pass

    # --- what is there ----------------------------------------------------------------------------
    def _view(self) -> GroupView:
        handles = self._members.handles
        views = {
            h.id: h.view(self._members.draining)
            for h in handles.values()
            if h.id in self._ranks or (not h.dead and h.placed) or h.report.state is MemberState.RAISED
        }
        ready = sum(v.report.state is MemberState.READY for v in views.values())
        now = time.monotonic()
        if ready < self._plan.workers_min:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        return GroupView(
            now, self._plan.workers_min, self._plan.workers_max, views, self._generation, self._ranks,
            self._breaking, self._last_step, self._last_step_at, self._phase_at, self._waiting_since,
            self._enough_since,
            self._charged, self._false_alarms, tuple(self._hangs), self._plan.patience,
        )  # fmt: skip

    def _notice(self) -> None:
        """New steps, members that died, suspects that came back."""
        handles = self._members.handles
        for handle in handles.values():
            self._chronicle.take(handle, self._ranks, self._generation)
        step = max((handles[m].report.step for m in self._ranks if not handles[m].report.fresh), default=0)
        if step != self._seen_step:
            # After a reload steps are done again: they are no new steps, but nothing hangs.
            self._seen_step, self._last_step_at = step, time.monotonic()
        if step > self._last_step:
            self._last_step, self._charged, self._failed_starts = step, 0, 0
            self._chronicle.first_new_step(step)
            self._members.post_guards()
        quiet = time.monotonic() - self._last_step_at
        if any(handles[m].report.phase and quiet < handles[m].report.patience for m in self._ranks):
            self._phase_at = time.monotonic()
        for handle in list(handles.values()):
            if handle.dead and handle.id not in self._ranks:
                self._forget(handle)
            elif handle.id not in self._ranks and handle.id not in self._suspects and self._useless(handle):
                self._members.kill(handle)
        self._check_suspects()

    def _useless(self, handle: Handle) -> bool:
        """A spare that does not answer, or is to go: it would keep its drained node from going.

        A member that is still being placed cannot answer yet.
        """
        if handle.report.leaving or (handle.node and handle.node in self._members.draining):
            return True
        silent = time.monotonic() - handle.heard
        return handle.report.state is MemberState.READY and silent > self._plan.patience.hang_alone

    def _forget(self, handle: Handle) -> None:
        del self._members.handles[handle.id]
        self._suspects.pop(handle.id, None)
        if handle.report.state not in (MemberState.STARTING, MemberState.RAISED) or not handle.dead:
            return
        self._failed_starts += 1
        self._spawn_after = time.monotonic() + min(SPAWN_SECONDS * 2**self._failed_starts, 60.0)
        self._chronicle.say(f"a worker did not start: {handle.dead}")
        needed = self._short or self._generation == 0
        if needed and self._failed_starts > self._plan.patience.charged:
            raise TrainingFailed(
                contract.Failure(FailureClass.WORKER_CRASH, f"workers die while they start: {handle.dead}")
            )

    def _check_suspects(self) -> None:
        now = time.monotonic()
        for member, suspect in list(self._suspects.items()):
            handle = self._members.handles[member]
            if member in self._ranks:
                continue
            if handle.report.state is MemberState.READY and handle.heard > suspect.since:
                del self._suspects[member]
                self._false_alarms += 1
                self._hangs = [hang for hang in self._hangs if hang != (suspect.step, handle.node)]
                self._chronicle.false_alarm(handle)
            elif now - suspect.since > SUSPECT_SECONDS and suspect.stacks.done():
                del self._suspects[member]
                self._members.kill(handle)

    # --- starting members -------------------------------------------------------------------------
    def _spawn(self) -> None:
        """Keep as many processes as wanted; spares only once the training runs, to start it sooner."""
        if (self._breaking is not None and not self._short) or time.monotonic() < self._spawn_after:
            return
        living = [
            h for h in self._members.handles.values()
            if not h.dead and h.id not in self._suspects and not h.report.leaving
            and h.node not in self._members.draining
        ]  # fmt: skip
        if any(h.ended for h in living) and not self._short:
            return
        living = [h for h in living if not h.ended]
        trains = self._short or self._makes_steps or self._generation == 0
        if not trains and len(self._ranks) >= self._plan.workers_min:
            return
        missing = self._plan.workers_max - len([h for h in living if not h.spare])
        wanted = self._plan.workers_max + (self._plan.spares if self._generation else 0) - len(living)
        for i in range(wanted):
            self._members.spawn(spare=i >= max(missing, 0))

    # --- answers ----------------------------------------------------------------------------------
    def _break(self, answer: Break) -> None:
        self._breaking = Breaking(time.monotonic(), answer.lost, answer.planned)
        self._waiting_since = time.monotonic()
        self._chronicle.breaks(answer, self._members.handles, self._ranks, self._last_step)
        self._suspect(answer.lost, at_fault=True)
        for handle in self._alive_ranks():
            if handle.ended:  # through with its part; it must not keep the CPU of those who finish the rest
                self._members.kill(handle)
                continue
            save = answer.planned and len(answer.lost) == len(self._ranks)
            self._members.leave(handle, self._generation, now=not answer.planned, save=save)

    def _abort(self) -> None:
        assert self._breaking is not None
        self._breaking = Breaking(time.monotonic(), self._breaking.lost, planned=True, aborted=True)
        for handle in self._alive_ranks():
            self._members.leave(handle, self._generation, now=True)

    def _lose(self, lost: tuple[Loss, ...]) -> None:
        assert self._breaking is not None
        b = self._breaking
        self._breaking = Breaking(b.since, (*b.lost, *lost), b.planned, b.aborted)
        self._chronicle.loses(lost, self._members.handles, self._ranks, self._last_step)
        self._suspect(lost, at_fault=False)

    def _suspect(self, lost: tuple[Loss, ...], at_fault: bool) -> None:
        """Ranks that still run somewhere: look at them, and end them unless they prove to be only slow.

        `at_fault`: the others waited for them, so that a second node which hangs at this step speaks against
        the code. Who only did not leave in time says nothing about the step.
        """
        for loss in lost:
            handle = self._members.handles[loss.member]
            if handle.dead or loss.failure_class in FREE:
                continue
            if at_fault and loss.failure_class is FailureClass.HANG:
                self._hangs.append((self._last_step, handle.node))
            stacks = self._members.later(self._chronicle.save_stacks, handle, self._members)
            self._suspects[handle.id] = Suspect(time.monotonic(), self._last_step, stacks)

    def _alive_ranks(self) -> list[Handle]:
        return [h for m in self._ranks if not (h := self._members.handles[m]).dead]

    def _regroup(self, answer: Regroup) -> None:
        handles = [self._members.handles[m] for m in answer.ranks]
        generation = self._generation + 1
        host, port = "", 0
        if len(handles) > 1:
            offer = self._members.offer_store(handles[0], generation)
            if offer is None:
                self._members.kill(handles[0])
                handles[0].dead = "does not answer"
                return
            host, port = offer
        backend = self._plan.backend or ("nccl" if all(h.placed.get("cuda") for h in handles) else "gloo")
        for rank, handle in enumerate(handles):
            rendezvous = Rendezvous(generation, rank, len(handles), host, port, backend)
            assignment = Assignment(
                rendezvous, answer.source, answer.receivers, *self._chronicle.last_checkpoint()
            )
            handle.spare = False
            self._members.assign(handle, assignment)
        left = [self._members.handles[m] for m in self._ranks if m not in answer.ranks]
        breaking, self._breaking = self._breaking, None
        if breaking is not None and self._costs(breaking):
            self._charged += 1
        self._generation, self._ranks = generation, answer.ranks
        self._last_step_at = time.monotonic()
        spares = len(self._view().ready())
        self._chronicle.regroups(answer, handles, generation, self._last_step, spares)
        for handle in left:
            if handle.id not in self._suspects:
                self._members.kill(handle)

    @staticmethod
    def _costs(breaking: Breaking) -> bool:
        return not breaking.planned and any(
            loss.failure_class not in FREE
            for loss in breaking.lost or (Loss("", FailureClass.NETWORK_FAULT, ""),)
        )

    # --- the end ----------------------------------------------------------------------------------
    def _done(self, member: str) -> dict[str, Any]:
        result = self._members.handles[member].report.result or {}
        self._chronicle.finished(self._last_step, result)
        self._chronicle.write_progress(self._members.handles, self._ranks, self._generation, force=True)
        return dict(result)

    def _failure(self, fail: Fail) -> contract.Failure:
        handle = self._members.handles.get(fail.member or "")
        error = handle.report.error if handle else None
        error = error or MemberError("", "", "", 1 if fail.failure_class is FailureClass.USER_ERROR else 75)
        return contract.Failure(
            failure_class=fail.failure_class, message=fail.message,
            rank=handle.report.rank if handle else None,
            node=handle.node if handle else "", host=str(handle.placed.get("host", "")) if handle else "",
            exit_code=error.exit_code, traceback=error.traceback, step=self._last_step, time=time.time(),
        )  # fmt: skip
