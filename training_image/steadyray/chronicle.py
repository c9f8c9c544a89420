"""What the driver records: events for the ledger, progress for the live view, stacks as evidence."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from steadyray import contract
from steadyray.contract import EventKind, FailureClass
from steadyray.members import Handle, Members
from steadyray.messages import STAGES, MemberState
from steadyray.recovery import Break, Loss, Regroup
from steadyray.rundir import RunWriter

WRITE_SECONDS = 1.0


@dataclass(slots=True)
class Incident:
    """One recovery inside the job, from the fault to the first new step."""

    id: str
    last_step: int
    last_step_time: float
    detected: float
    lost: list[Loss] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    from_step: int | None = None
    """The step that the next generation began from; None until there is one."""
    depth: contract.Depth = contract.Depth.HOT
    message: str = ""

    def regrouped(self, answer: Regroup) -> None:
        """The deepest tells: a group that was reloaded may grow back before it has made up for its loss."""
        if self.from_step is None:
            self.from_step, self.depth = answer.from_step, answer.depth
            return
        self.from_step = min(self.from_step, answer.from_step)
        self.depth = max(self.depth, answer.depth, key=list(contract.Depth).index)


class Chronicle:
    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer
        self.checkpoint: str | None = None
        """Id of the newest checkpoint of this lineage."""
        self.generation_from = 0
        self._checkpoint_step: int | None = None
        self._checkpointed = time.monotonic()
        self._incident: Incident | None = None
        self._incidents = 0
        self._message = ""
        self._losses: dict[int, tuple[float | None, float]] = {}
        self._written_step = 0
        self._segment_start = time.time()
        self._last_step_time = time.time()
        self._last_loss: float | None = None
        self._metrics: dict[str, float] = {}
        self._total: int | None = None
        self._generation = 0
        self._world_size = 0
        self._samples = 0
        self._saving = 0.0
        self._wrote = 0.0
        self._durations: float | None = None

    def say(self, message: str) -> None:
        """What just went wrong and what is done about it; on the driver's log and in the live view."""
        if message != self._message:
            self._message = message
            if message:
                print(f"steadyray: {message}", flush=True)

    def last_checkpoint(self) -> tuple[str | None, int, float]:
        """The newest checkpoint of this lineage: id, step, and age in seconds."""
        return self.checkpoint, self._checkpoint_step or 0, time.monotonic() - self._checkpointed

    def started(self, node: str, host: str, workers: tuple[int, int], spares: int) -> None:
        self._writer.event(
            EventKind.DRIVER_STARTED, node=node, host=host, workers=list(workers), spares=spares
        )

    # --- steps ------------------------------------------------------------------------------------
    def take(self, handle: Handle, ranks: tuple[str, ...], generation: int) -> None:
        """Losses and notes of a member's last report; each is taken once."""
        report = handle.report
        if not report.losses and not report.notes:
            return
        handle.report = _without_news(handle)
        for step, loss, at in report.losses:
            if step > self._written_step and (step not in self._losses or self._losses[step][0] is None):
                self._losses[step] = (loss, at)
                self._last_step_time = max(self._last_step_time, at)
                self._last_loss = loss if loss is not None else self._last_loss
        for kind, data in report.notes:
            self._note(kind, data, generation)
        if handle.id in ranks:
            self._total = report.total_steps or self._total
            self._samples = report.samples or self._samples
            self._durations = report.step_seconds or self._durations
            self._metrics = report.metrics if ranks[0] == handle.id else self._metrics

    def _note(self, kind: str, data: dict[str, Any], generation: int) -> None:
        if kind == "saved":
            self.checkpoint, self._checkpoint_step = str(data["id"]), int(data["step"])
            self._checkpointed = time.monotonic()
            self._saving += float(data["blocking_seconds"])
            self._writer.event(EventKind.CHECKPOINT_SAVED, generation=generation, **data)
        elif kind == "save-failed":
            self.say(str(data["error"]))
        elif kind == "loaded":
            self.checkpoint, self._checkpoint_step = str(data["id"]), int(data["step"])
            self.generation_from = self._written_step = int(data["step"])
            if self._incident is not None:
                self._incident.from_step = int(data["step"])
            self._writer.event(EventKind.CHECKPOINT_LOADED, generation=generation, **data)
        elif kind == "set-aside":
            self.say(f"checkpoint {data['id']} is bad and was set aside: {data['reason']}")
            self._writer.event(EventKind.CHECKPOINT_SET_ASIDE, generation=generation, **data)
        elif kind == "unreadable":
            self.say(f"passed over checkpoint {data['id']}, which cannot be read: {data['reason']}")
        elif kind == "phase":
            self._writer.event(EventKind.PHASE, generation=generation, **data)

    def first_new_step(self, step: int) -> None:
        incident = self._incident
        if incident is None:
            self.say("")  # whatever was wrong, steps are being made
            return
        if incident.from_step is None or step <= incident.last_step:
            return
        at = self._losses.get(incident.last_step + 1, (None, time.time()))[1]
        self._incident = None
        total = max(0.0, at - incident.last_step_time)
        redone = max(0, incident.last_step - incident.from_step)
        self._writer.event(
            EventKind.RECOVERED, generation=self._generation, incident=incident.id, depth=incident.depth,
            from_step=incident.from_step, steps_redone=redone, world_size=self._world_size,
            lost=incident.ranks, seconds_detection=max(0.0, incident.detected - incident.last_step_time),
            seconds_total=total, last_step_time=incident.last_step_time,
            first_new_step_time=at, false_alarm=False,
        )  # fmt: skip
        print(
            f"steadyray: recovered ({incident.depth}) in {total:.2f} s since the "
            f"last step, {redone} steps redone, {self._world_size} workers", flush=True,
        )  # fmt: skip
        self.say("")

    def flush_steps(self, generation: int) -> None:
        """Write the finished steps since the last segment as one event."""
        new = sorted(s for s in self._losses if s > self._written_step)
        if not new:
            return
        start, end = self._first_step_start(new), max(self._losses[s][1] for s in new)
        self._writer.event(
            EventKind.STEPS_DONE, generation=generation, from_step=self._written_step, to_step=new[-1],
            start=start, end=end, losses=[[s, self._losses[s][0]] for s in new],
            samples=self._samples * len(new), save_seconds=self._saving, world_size=self._world_size,
        )  # fmt: skip
        self._written_step, self._segment_start, self._saving = new[-1], end, 0.0
        self._losses.clear()

    def _first_step_start(self, new: list[int]) -> float:
        """Forming the group and warming up are no training: the first step gets the time of the others."""
        first, last = self._losses[new[0]][1], self._losses[new[-1]][1]
        typical = (last - first) / (len(new) - 1) if len(new) > 1 else self._durations or 0.0
        return max(self._segment_start, first - typical)

    # --- recoveries -------------------------------------------------------------------------------
    def breaks(
        self, answer: Break, handles: Mapping[str, Handle], ranks: tuple[str, ...], last_step: int
    ) -> None:
        if self._incident is None:
            self._incidents += 1
            self._incident = Incident(
                f"{self._writer.attempt:04d}-{self._incidents:03d}",
                last_step,
                self._last_step_time,
                time.time(),
            )
        self._incident.message = answer.message
        self.say(f"{'regrouping' if answer.planned else 'recovering'}: {answer.message}")
        self.loses(answer.lost, handles, ranks, last_step)

    def loses(
        self, lost: Iterable[Loss], handles: Mapping[str, Handle], ranks: tuple[str, ...], last_step: int
    ) -> None:
        incident = self._incident
        assert incident is not None
        for loss in lost:
            handle = handles[loss.member]
            rank = ranks.index(loss.member)
            incident.lost.append(loss)
            incident.ranks.append(rank)
            where: dict[str, Any] = {"rank": rank, "node": handle.node, "host": handle.placed.get("host", "")}
            self._writer.event(
                EventKind.RANK_LOST, generation=self._generation, incident=incident.id, **where,
                failure_class=loss.failure_class, reason=loss.reason, detected=time.time(),
                last_step=last_step,
            )  # fmt: skip
            if loss.failure_class is FailureClass.HANG:
                self._writer.event(
                    EventKind.HANG_SUSPECTED, generation=self._generation, incident=incident.id, **where,
                    step=last_step, waited_seconds=max(0.0, time.time() - self._last_step_time),
                    signals=[loss.reason, f"stage {STAGES[handle.report.stage]}"],
                    stacks=_stacks_path(self._writer.attempt, handle),
                )  # fmt: skip
            print(f"steadyray: lost rank {rank} ({loss.failure_class}): {loss.reason}", flush=True)

    def regroups(
        self, answer: Regroup, handles: list[Handle], generation: int, last_step: int, spares: int
    ) -> None:
        self.flush_steps(self._generation)
        self._generation, self._world_size = generation, len(handles)
        self.generation_from = answer.from_step if answer.source is not None else 0
        if self._incident is not None:
            self._incident.regrouped(answer)
            # The last reports of the old generation came in only while it was being left.
            self._incident.last_step = max(self._incident.last_step, last_step)
            self._incident.last_step_time = self._last_step_time
        else:
            self.say("")
        if answer.source is None:
            self._written_step = 0
        source = "peer" if answer.source is not None else ("checkpoint" if self.checkpoint else "fresh")
        self._segment_start = time.time()
        self._writer.event(
            EventKind.GENERATION_STARTED, generation=generation, world_size=len(handles),
            ranks=[_place(rank, h) for rank, h in enumerate(handles)],
            from_step=answer.from_step, source=source, checkpoint=self.checkpoint,
            spares=spares,
        )  # fmt: skip

    def false_alarm(self, handle: Handle) -> None:
        self.say(f"the process on {handle.placed.get('host', '')} was only slow: it is kept as a spare")
        self._writer.event(
            EventKind.RECOVERED, generation=self._generation, incident=f"{self._writer.attempt:04d}-slow",
            depth=contract.Depth.HOT, false_alarm=True, lost=[handle.report.rank],
        )  # fmt: skip

    def save_stacks(self, handle: Handle, members: Members) -> None:
        self._writer.text(f"stacks-{handle.id}.txt", members.stacks(handle))

    # --- progress ---------------------------------------------------------------------------------
    def write_progress(
        self,
        handles: Mapping[str, Handle],
        ranks: tuple[str, ...],
        generation: int,
        *,
        waits: bool = False,
        force: bool = False,
    ) -> None:
        if not force and time.monotonic() - self._wrote < WRITE_SECONDS:
            return
        self._wrote = time.monotonic()
        step = max([self._written_step, *self._losses])
        self.flush_steps(generation)
        rate = self._samples / self._durations if self._durations else None
        spares = sum(
            h.report.state is MemberState.READY and not h.dead and h.id not in ranks for h in handles.values()
        )
        living = [(r, handles[m]) for r, m in enumerate(ranks) if m in handles]
        phase = next((h.report.phase for _, h in living if h.report.phase), "train")
        phase = contract.PHASE_WAITING if waits else phase
        self._writer.progress(
            contract.Progress(
                step=step, total_steps=self._total, loss=self._last_loss, metrics=self._metrics,
                samples_per_second=rate, world_size=self._world_size, spares=spares, generation=generation,
                attempt=self._writer.attempt, phase=phase, step_seconds=self._durations,
                checkpoint_step=self._checkpoint_step, message=self._message, time=time.time(),
                ranks=[{**_place(r, h), **_status(h)} for r, h in living],
            )
        )  # fmt: skip

    def finished(self, step: int, result: dict[str, Any]) -> None:
        self.flush_steps(self._generation)
        metrics = {k: v for k, v in result.items() if isinstance(v, int | float)}
        self._metrics = {**self._metrics, **{k: float(v) for k, v in metrics.items()}}
        self._writer.event(
            EventKind.TRAINING_FINISHED, generation=self._generation, step=step, metrics=metrics,
            model=str(result.get("model", "")),
        )  # fmt: skip


def _place(rank: int, handle: Handle) -> dict[str, Any]:
    p = handle.placed
    return {"rank": rank, "node": handle.node, "host": p.get("host", ""), "pid": p.get("pid", 0)}


def _status(handle: Handle) -> dict[str, Any]:
    r = handle.report
    age = time.monotonic() - handle.heard
    return {
        "step": r.step,
        "stage": STAGES[r.stage],
        "phase": r.phase or "train",
        "heard_seconds": round(age, 2),
    }


def _without_news(handle: Handle) -> Any:
    return replace(handle.report, losses=(), notes=())


def _stacks_path(attempt: int, handle: Handle) -> str:
    return contract.evidence(attempt, f"stacks-{handle.id}.txt")
