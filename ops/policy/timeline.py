"""From the events of a run to facts with a start and an end: attempts, generations, steps, incidents.

The first half of the ledger (`ops.policy.ledger` is the second, the report shows both). Events come from
several writers in any order, some may be missing, and their clocks differ; all of that is settled here,
so that the ledger only has to paint intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from steadyray.contract import Event, EventKind, FailureClass

from ops.policy.events import align, dicts, integer, number, text
from ops.policy.incidents import Incident, gather


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps that were done in one go: `from_step` exclusive, `to_step` inclusive; wall clock seconds."""

    start: float
    end: float
    from_step: int
    to_step: int
    attempt: int
    generation: int
    save_seconds: float = 0.0
    losses: tuple[tuple[int, float], ...] = ()

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Generation:
    """One set of ranks, from its start to the next one or the end of its attempt."""

    attempt: int
    number: int
    start: float
    end: float
    world_size: int
    spares: int
    from_step: int
    source: str
    ranks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One submission; times are None where nothing is known."""

    number: int
    claimed: float | None = None
    submitted: float | None = None
    running: float | None = None
    ended: float | None = None
    cluster: str = ""
    submission_id: str = ""
    driver_host: str = ""
    status: str = ""
    exit_code: int | None = None
    failure_class: str | None = None
    step: int | None = None
    reports: bool = False
    """Whether the training library wrote anything; a plain script does not."""
    generations: tuple[Generation, ...] = ()

    @property
    def start(self) -> float | None:
        return next((t for t in (self.claimed, self.submitted, self.running) if t is not None), None)


@dataclass(frozen=True, slots=True)
class Interval:
    start: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    start: float
    end: float
    finished: bool
    state: str
    message: str
    segments: tuple[Segment, ...]
    attempts: tuple[Attempt, ...]
    incidents: tuple[Incident, ...]
    waits: tuple[Interval, ...]
    phases: tuple[Interval, ...]
    pauses: tuple[Interval, ...]
    """From a RunFinished to the claim that resumed the run."""
    events: tuple[Event, ...] = field(repr=False, default=())
    """In the order of time, with the clocks of the writers aligned."""


def timeline(events: Iterable[Event]) -> Timeline:
    """Put the events of one run in order. Damaged fields are passed over, never guessed."""
    unique = {(e.writer, e.seq): e for e in events if math.isfinite(e.time)}
    ordered = sorted(align(list(unique.values())), key=lambda e: (e.time, e.writer, e.seq))
    if not ordered:
        return Timeline(0.0, 0.0, False, "", "", (), (), (), (), (), ())
    start = min((e.time for e in ordered if e.kind == EventKind.RUN_CREATED), default=ordered[0].time)
    pauses, finish = _pauses(ordered)
    finish = finish or _end_without_supervisor(ordered)
    end = max(start, ordered[-1].time if finish is None else finish.time)
    segments = _segments(ordered, start, end)
    return Timeline(
        start=start,
        end=end,
        finished=finish is not None,
        state=_state(finish),
        message=text(finish.data, "message") if finish else "",
        segments=segments,
        attempts=_attempts(ordered, end),
        incidents=gather(ordered, [(s.attempt, s.end) for s in segments], start, end),
        waits=_waits(ordered),
        phases=_phases(ordered),
        pauses=pauses,
        events=tuple(ordered),
    )


def _end_without_supervisor(events: Sequence[Event]) -> Event | None:
    """Where `steadyray.run` was called by hand, the driver's word is the last one."""
    if any(not e.writer.startswith("driver-") for e in events):
        return None
    return next((e for e in reversed(events) if e.kind == EventKind.TRAINING_FINISHED), None)


def _state(finish: Event | None) -> str:
    if finish is None:
        return ""
    return "Succeeded" if finish.kind == EventKind.TRAINING_FINISHED else text(finish.data, "state")


# --- steps -------------------------------------------------------------------------------------------
def _segments(events: Sequence[Event], start: float, end: float) -> tuple[Segment, ...]:
    """In the order in which they were done, which attempt and generation tell better than clocks do."""
    found = []
    for e in events:
        if e.kind != EventKind.STEPS_DONE:
            continue
        from_step, to_step = integer(e.data, "from_step"), integer(e.data, "to_step")
        if from_step is None or to_step is None or to_step <= from_step:
            continue
        last = number(e.data, "end")
        last = e.time if last is None else last
        first = number(e.data, "start")
        first = last if first is None else min(first, last)
        first, last = min(max(first, start), end), min(max(last, start), end)
        saving = max(0.0, number(e.data, "save_seconds") or 0.0)
        found.append(
            Segment(first, last, from_step, to_step, e.attempt, e.generation, saving, _losses(e.data))
        )
    return tuple(sorted(found, key=lambda s: (s.attempt, s.generation, s.start, s.from_step)))


def _losses(data: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    pairs = data.get("losses")
    if not isinstance(pairs, list):
        return ()
    return tuple(
        (int(pair[0]), float(pair[1]))
        for pair in pairs
        if isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(x, int | float) and math.isfinite(x) for x in pair)
    )


# --- attempts ----------------------------------------------------------------------------------------
def _attempts(events: Sequence[Event], end: float) -> tuple[Attempt, ...]:
    attempts: dict[int, Attempt] = {}
    for e in events:
        if e.attempt <= 0:
            continue
        old = attempts.get(e.attempt, Attempt(e.attempt))
        attempts[e.attempt] = replace(old, **_attempt_change(e))
    numbered = [a for _, a in sorted(attempts.items())]
    following = [*(a.start for a in numbered[1:]), None]
    return tuple(
        replace(a, generations=_generations(events, a, _first(a.ended, after, end)))
        for a, after in zip(numbered, following, strict=False)
    )


def _first(*times: float | None) -> float:
    return next(t for t in times if t is not None)


def _attempt_change(e: Event) -> dict[str, Any]:
    if e.kind == EventKind.ATTEMPT_CLAIMED:
        return {
            "claimed": e.time,
            "cluster": text(e.data, "cluster"),
            "submission_id": text(e.data, "submission_id"),
        }
    if e.kind == EventKind.ATTEMPT_SUBMITTED:
        return {"submitted": e.time}
    if e.kind == EventKind.ATTEMPT_RUNNING:
        return {"running": e.time, "driver_host": text(e.data, "driver_host")}
    if e.kind == EventKind.ATTEMPT_ENDED:
        return {
            "ended": e.time,
            "status": text(e.data, "status"),
            "exit_code": integer(e.data, "exit_code"),
            "failure_class": text(e.data, "failure_class") or None,
            "step": integer(e.data, "step"),
        }
    return {"reports": True} if e.kind in (EventKind.DRIVER_STARTED, EventKind.STEPS_DONE) else {}


def _generations(events: Sequence[Event], attempt: Attempt, end: float) -> tuple[Generation, ...]:
    own = [e for e in events if e.kind == EventKind.GENERATION_STARTED and e.attempt == attempt.number]
    ends = [*(e.time for e in own[1:]), end][: len(own)]
    return tuple(
        Generation(
            attempt=attempt.number,
            number=e.generation,
            start=e.time,
            end=max(e.time, until),
            world_size=max(0, integer(e.data, "world_size") or 0),
            spares=max(0, integer(e.data, "spares") or 0),
            from_step=integer(e.data, "from_step") or 0,
            source=text(e.data, "source"),
            ranks=dicts(e.data, "ranks"),
        )
        for e, until in zip(own, ends, strict=True)
    )


# --- other intervals ---------------------------------------------------------------------------------
def _pauses(events: Sequence[Event]) -> tuple[tuple[Interval, ...], Event | None]:
    """Times between an end and the claim that resumed the run; and the end that holds, if one does."""
    pauses, finish = [], None
    for e in events:
        if e.kind == EventKind.RUN_FINISHED:
            finish = finish or e
        elif e.kind == EventKind.ATTEMPT_CLAIMED and finish is not None:
            pauses.append(Interval(finish.time, e.time, text(finish.data, "state")))
            finish = None
    return tuple(pauses), finish


_WAIT_REASONS = (FailureClass.CAPACITY_MISSING, FailureClass.QUEUED)
"""The supervisor also waits for a cluster that does not answer or before a retry; that is repair."""

_WAIT_ENDS = frozenset(EventKind) - {
    EventKind.EVIDENCE_SAVED,
    EventKind.ACTION_WITHHELD,
    EventKind.ATTEMPT_SUBMITTED,
    EventKind.CLUSTER_SILENT,
}


def _waits(events: Sequence[Event]) -> tuple[Interval, ...]:
    waits, reason, begin = [], "", None
    for e in events:
        if e.kind == EventKind.WAITING and text(e.data, "reason") in _WAIT_REASONS:
            since = number(e.data, "since")
            begin = begin if begin is not None else min(e.time, e.time if since is None else since)
            reason = text(e.data, "reason")
        elif begin is not None and e.kind in _WAIT_ENDS:
            waits.append(Interval(begin, e.time, reason))
            begin = None
    if begin is not None:
        waits.append(Interval(begin, max(begin, events[-1].time), reason))
    return tuple(waits)


def _phases(events: Sequence[Event]) -> tuple[Interval, ...]:
    found = []
    for e in events:
        first, last = number(e.data, "start"), number(e.data, "end")
        if e.kind == EventKind.PHASE and first is not None and last is not None and last > first:
            found.append(Interval(first, last, text(e.data, "name")))
    return tuple(found)
