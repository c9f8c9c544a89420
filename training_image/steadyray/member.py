"""The session of one process of the group: a rank, or a warm spare that waits to become one.

The user's `train` runs in a thread of its own and meets the driver in `MemberSession`; the threads of the
actor (actor.py) answer the driver (group.py), also while training waits in a collective. When the training
thread hangs the answers go on; when the process is frozen they stop: the driver tells the two apart by that.
"""

from __future__ import annotations

import re
import statistics
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from steadyray import checkpoint
from steadyray.collective import (
    Group,
    GroupFailed,
    GroupLeft,
    group_work,
    open_store,
    receive_state,
    send_state,
)
from steadyray.contract import FailureClass
from steadyray.hiding import hide
from steadyray.messages import STAGES, Assignment, MemberError, MemberState, Report, Settings
from steadyray.session import Place
from steadyray.state import State, StateDict

LOST_LOADER = re.compile(r"DataLoader worker \(pid\S* .*\) (?:is killed by signal: [\w ]+|exited unexp)")
"""torch 2.15 about a worker process of a DataLoader that is gone; what one raised comes as itself."""

LOAD_SECONDS = 600.0
"""Patience for reading a checkpoint, or handing on the state: large ones take minutes."""


class MemberSession:
    """The session of a member process: everything the training thread and the answering threads share."""

    def __init__(self, settings: Settings, node_ip: str) -> None:
        self.settings = settings
        self._ip = node_ip
        self._condition = threading.Condition()
        self._report = Report(MemberState.STARTING)
        self._losses: list[tuple[int, float | None, float]] = []
        self._notes: list[tuple[str, dict[str, Any]]] = []
        self._durations: deque[float] = deque(maxlen=51)
        self._assignment: Assignment | None = None
        self._over = False
        self._group: Group | None = None
        self._stores: dict[int, dist.TCPStore] = {}
        self._leave_at = 0
        self._save_at = 0
        self._often = 0
        self._leaving = False
        self._parent: str | None = None
        self._checkpoint_step = 0
        self._checkpointed = time.monotonic()
        self._step_began: float | None = None
        self._phase_began = 0.0
        self._news = False
        self._heard = time.monotonic()

    # --- training thread ----------------------------------------------------------------------------
    def join(self, state: State) -> Place | None:
        while True:
            if self._report.state is not MemberState.FINISHED:
                self._set(state=MemberState.READY, step=state.step, clean=state.clean)
            with self._condition:
                self._condition.wait_for(lambda: self._over or self._assignment is not None)
                assignment, self._assignment = self._assignment, None
            if assignment is None:
                return None
            try:
                self._meet(assignment, state)
            except (GroupFailed, GroupLeft) as error:
                # Whatever fails while the group forms is for the driver to judge; the state here is whole
                # unless it was being received, and then another rank is the source again.
                self.left(error.__cause__ or error, state)
                continue
            self._set(
                state=MemberState.TRAINING, step=state.step, clean=True, fresh=False, phase="", patience=0.0
            )  # fmt: skip
            r = assignment.rendezvous
            return Place(r.generation, r.rank, r.world_size, local=False)

    def _meet(self, assignment: Assignment, state: State) -> None:
        """Form the group and hold its state. Disk and the user's state raise errors of their own."""
        with group_work():
            self._form(assignment)
        self._set(phase="load", patience=LOAD_SECONDS)
        rank, source, receivers = assignment.rendezvous.rank, assignment.source, assignment.receivers
        if source is None:
            source, receivers = 0, tuple(range(1, assignment.rendezvous.world_size))
            if rank == 0:
                self._load(state)
        if rank == source and receivers:
            held: StateDict = state.state_dict()
            with group_work():
                for receiver in receivers:
                    send_state(held, receiver)
        elif rank in receivers:
            with group_work():
                received = receive_state(source)
            assert isinstance(received, dict)
            state.clean = False
            state.load_state_dict(received)

    def _form(self, assignment: Assignment) -> None:
        r = assignment.rendezvous
        self._set(state=MemberState.FORMING, generation=r.generation, rank=r.rank, stage=0, lost_peer="")
        if assignment.parent is not None:
            self._parent, self._checkpoint_step = assignment.parent, assignment.checkpoint_step
        self._checkpointed = time.monotonic() - assignment.checkpoint_age
        store = self._stores.pop(r.generation, None)
        if r.world_size > 1:
            with self._condition:
                self._group = Group(r, self._ip, store)
            if self._leave_at >= r.generation:  # asked before there was a group to abort
                raise GroupLeft(f"generation {r.generation} was given up before it formed")
            self._group.form()

    def _load(self, state: State) -> None:
        loaded = checkpoint.load_newest(self.settings.root) if self.settings.root else None
        if loaded is None:
            if not state.clean:
                raise ValueError(
                    f"step {state.step + 1} was torn between two changes of the state, and there is no "
                    "checkpoint to go back to: set steadyray.State(copy_steps=True), or give the run storage"
                )
            return
        for name, reason in loaded.set_aside:
            self.note("set-aside", id=name, reason=reason)
        for name, reason in loaded.unreadable:
            self.note("unreadable", id=name, reason=reason)
        state.load_state_dict(loaded.state)
        self._parent, self._checkpoint_step = loaded.id, state.step
        self.note("loaded", step=state.step, id=loaded.id, seconds=loaded.seconds)

    def begin_step(self, step: int) -> None:
        if self._leave_at >= self._report.generation > 0:
            raise GroupLeft(f"asked to leave generation {self._report.generation} before step {step}")
        self._step_began = time.monotonic()
        self.stage(STAGES[0])

    def stage(self, name: str) -> None:
        self._report = replace(self._report, stage=STAGES.index(name))

    def committed(self, step: int, loss: float | None, samples: int, metrics: dict[str, float]) -> None:
        if self._step_began is not None:
            self._durations.append(time.monotonic() - self._step_began)
        with self._condition:
            self._losses.append((step, loss, time.time()))
            r = self._report
            self._report = replace(
                r, step=step, stage=0, samples=samples, metrics=metrics or r.metrics, fresh=False
            )

    def check_group(self) -> None:
        if self._group is not None and self._group.aborted:
            raise GroupLeft(f"generation {self._report.generation} was aborted in its step")

    def phase(self, name: str | None, patience: float, recorded: bool = True) -> None:
        if name is None and recorded:
            self.note("phase", name=self._report.phase, start=self._phase_began, end=time.time())
        elif name is not None:
            self._phase_began = time.time()
        self._set(phase=name or "", patience=patience)

    def left(self, error: BaseException | None, state: State) -> None:
        group, self._group = self._group, None
        if group is not None:
            # Without the shutdown, peers that wait for this rank would wait until their time-out.
            if error is not None:
                group.abort()
            group.close()
        if error is None:
            self._set(state=MemberState.FINISHED, step=state.step, clean=state.clean)
        else:
            reason = "" if isinstance(error, GroupLeft) else f"{type(error).__name__}: {error}"
            self._set(
                state=MemberState.READY, step=state.step, clean=state.clean, lost_peer=reason[:500],
                phase="", stage=0,
            )  # fmt: skip

    def saved_checkpoint(self, **data: object) -> None:
        if "id" in data:
            self._parent, self._checkpoint_step = str(data["id"]), int(str(data["step"]))
        self.note("saved" if "id" in data else "save-failed", **data)

    def last_checkpoint(self) -> tuple[str | None, int, float]:
        return self._parent, self._checkpoint_step, self._checkpointed

    def must_save(self) -> bool:
        return self._save_at >= self._report.generation > 0

    def is_ending(self) -> bool:
        return self._often >= self._report.generation > 0

    def total_steps(self, total: int) -> None:
        self._set(total_steps=total)

    def note(self, kind: str, **data: Any) -> None:
        with self._condition:
            self._notes.append((kind, data))
            self._wake()

    def raised(self, error: BaseException) -> None:
        code = error.code if isinstance(error, SystemExit) else 1
        self._set(state=MemberState.RAISED, error=MemberError(
            kind=type(error).__name__, message=_words(error)[:2000], traceback=_user_traceback(error),
            exit_code=code if isinstance(code, int) else 1,
            failure_class=_class_of(error),
        ))  # fmt: skip

    def returned(self, result: Mapping[str, Any] | None) -> None:
        self._set(state=MemberState.RETURNED, result=dict(result or {}))

    def _set(self, **changes: Any) -> None:
        with self._condition:
            self._report = replace(self._report, **changes)
            self._wake()

    def _wake(self) -> None:
        self._news = True
        self._condition.notify_all()

    # --- answering threads --------------------------------------------------------------------------
    def poll(self, wait: float) -> Report:
        """The latest report: at once where something happened, else after `wait` seconds."""
        self._heard = time.monotonic()
        with self._condition:
            self._condition.wait_for(lambda: self._news, timeout=wait)
            self._news = False
            losses, self._losses = tuple(self._losses), []
            notes, self._notes = tuple(self._notes), []
            median = statistics.median(self._durations) if self._durations else None
            return replace(
                self._report, losses=losses, notes=notes, step_seconds=median, leaving=self._leaving
            )

    def assign(self, assignment: Assignment) -> None:
        with self._condition:
            self._assignment = assignment
            self._condition.notify_all()

    def offer_store(self, generation: int) -> tuple[str, int]:
        store = open_store(self._ip)
        self._stores = {generation: store}
        return self._ip, store.port

    def leave(self, generation: int, now: bool, save: bool) -> None:
        """Leave the generation: before the next step, or (`now`) by making its collectives fail.

        With `save` rank 0 saves the state first: no other rank stays to hand it on.
        """
        if save:  # set first: the training thread may leave as soon as it sees the other
            self._save_at = generation
        self._leave_at = max(self._leave_at, generation)
        group = self._group
        if now and group is not None and group.rendezvous.generation <= generation:
            group.abort()

    def save_often(self, generation: int) -> None:
        self._often = generation

    def end(self) -> None:
        with self._condition:
            self._over = True
            self._condition.notify_all()

    def on_terminate(self, *_: Any) -> None:
        # Not in the report: the training thread replaces that without a lock and might undo it.
        self._leaving = True

    @property
    def unheard_seconds(self) -> float:
        return time.monotonic() - self._heard


def _class_of(error: BaseException) -> FailureClass:
    if isinstance(error, checkpoint.CheckpointCorruptError):
        return FailureClass.CHECKPOINT_CORRUPT
    if isinstance(error, checkpoint.CheckpointUnreadableError):
        return FailureClass.STORAGE_TRANSIENT
    if isinstance(error, RuntimeError) and (lost := LOST_LOADER.search(_words(error))):
        # torch says nothing but this where /dev/shm is too small, and a new process would find it the same
        return FailureClass.BAD_ENVIRONMENT if "Bus error" in lost[0] else FailureClass.WORKER_CRASH
    return FailureClass.USER_ERROR


def _words(error: BaseException) -> str:
    try:
        return hide(str(error))  # before it is cut, or a part of a secret would stay
    except Exception as again:  # noqa: BLE001  or the training thread would end without a word, as a hang
        return f"(its message cannot be made: {type(again).__name__})"


def _user_traceback(error: BaseException) -> str:
    text = hide("".join(traceback.format_exception(error)))
    return text[-20_000:]
