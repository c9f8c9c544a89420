"""From the events of a run to facts with a start and an end: attempts, generations, steps, incidents.

The first half of the ledger (`ops.policy.ledger` is the second, the report shows both). Events come from
several writers in any order, some may be missing, and their clocks differ; all of that is settled here,
so that the ledger only has to paint intervals.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from steadyray.contract import Event, EventKind

MAX_SKEW_SECONDS = 10.0
"""Largest difference between two clocks that is taken for skew and corrected.

Hosts under NTP differ by milliseconds, unsynchronised ones by some seconds. A driver that reports later
than that after its attempt was declared ended was cut off and still alive: that is a fact, not skew.
"""


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
class Incident:
    """One thing that went wrong, put together from all events that carry its id."""

    id: str
    attempt: int
    fault_time: float
    """Best known; the last step before the detection where nobody saw the fault itself."""
    detected: float
    failure_class: str = "Unknown"
    message: str = ""
    rule: str = ""
    culprit: str = ""
    step: int | None = None
    depth: str = ""
    action: str = ""
    action_message: str = ""
    false_alarm: bool = False
    last_good: float | None = None
    first_new: float | None = None
    steps_redone: int | None = None
    evidence: tuple[Mapping[str, Any], ...] = ()
    by_supervisor: bool = False


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
    ordered = sorted(_align(list(unique.values())), key=lambda e: (e.time, e.writer, e.seq))
    if not ordered:
        return Timeline(0.0, 0.0, False, "", "", (), (), (), (), (), ())
    start = min((e.time for e in ordered if e.kind == EventKind.RUN_CREATED), default=ordered[0].time)
    pauses, finish = _pauses(ordered)
    end = max(start, ordered[-1].time if finish is None else finish.time)
    segments = _segments(ordered, start, end)
    return Timeline(
        start=start,
        end=end,
        finished=finish is not None,
        state=text(finish.data, "state") if finish else "",
        message=text(finish.data, "message") if finish else "",
        segments=segments,
        attempts=_attempts(ordered, end),
        incidents=_incidents(ordered, segments, start, end),
        waits=_waits(ordered),
        phases=_phases(ordered),
        pauses=pauses,
        events=tuple(ordered),
    )


# --- reading damaged data ----------------------------------------------------------------------------
def number(data: Mapping[str, Any], key: str) -> float | None:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def integer(data: Mapping[str, Any], key: str) -> int | None:
    value = number(data, key)
    return None if value is None else int(value)


def text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def dicts(data: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    value = data.get(key)
    return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


# --- clocks ------------------------------------------------------------------------------------------
_TIMES = ("start", "end", "detected", "last_step_time", "first_new_step_time", "fault_time", "since")


def _align(events: Sequence[Event]) -> list[Event]:
    """Shift each driver's clock by the least that puts cause before effect.

    A driver writes nothing before its attempt was claimed and nothing after the supervisor saw it end.
    The supervisor's clock is the reference, because RunCreated and RunFinished are taken from it.
    """
    claimed = {e.attempt: e.time for e in reversed(events) if e.kind == EventKind.ATTEMPT_CLAIMED}
    ended: dict[int, float] = {}
    for event in events:
        if event.kind in (EventKind.ATTEMPT_ENDED, EventKind.RUN_FINISHED):
            ended[event.attempt] = max(event.time, ended.get(event.attempt, event.time))
    drivers: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.writer.startswith("driver-"):
            drivers[event.writer].append(event)
    shifts = {
        w: _shift(own, claimed.get(own[0].attempt), ended.get(own[0].attempt)) for w, own in drivers.items()
    }
    return [_shifted(event, shifts.get(event.writer, 0.0)) for event in events]


def _shift(own: Sequence[Event], earliest: float | None, latest: float | None) -> float:
    first, last = min(e.time for e in own), max(e.time for e in own)
    forward = 0.0 if earliest is None else earliest - first
    if 0.0 < forward <= MAX_SKEW_SECONDS:
        return forward
    back = 0.0 if latest is None else last - latest
    if 0.0 < back <= MAX_SKEW_SECONDS:
        return max(-back, forward)
    return 0.0


def _shifted(event: Event, shift: float) -> Event:
    if shift == 0.0:
        return event
    moved = {key: value + shift for key in _TIMES if (value := number(event.data, key)) is not None}
    return replace(event, time=event.time + shift, data={**event.data, **moved})


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
    return tuple(replace(a, generations=_generations(events, a, end)) for _, a in sorted(attempts.items()))


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
    last = end if attempt.ended is None else attempt.ended
    ends = [*(e.time for e in own[1:]), last]
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


# --- incidents ---------------------------------------------------------------------------------------
_OPENING = (EventKind.INCIDENT_OPENED, EventKind.RANK_LOST, EventKind.HANG_SUSPECTED)


def _incidents(
    events: Sequence[Event], segments: Sequence[Segment], start: float, end: float
) -> tuple[Incident, ...]:
    groups: dict[str, list[Event]] = defaultdict(list)
    for e in events:
        if e.incident:
            groups[e.incident].append(e)
        elif e.kind in _OPENING:
            groups[f"{e.writer}:{e.seq}"].append(e)
    ended = {e.attempt: e.time for e in events if e.kind == EventKind.ATTEMPT_ENDED}
    found = (
        _incident(name, own, segments, ended)
        for name, own in groups.items()
        if any(e.kind in _OPENING or e.kind == EventKind.RECOVERED for e in own)
    )
    clipped = (
        replace(i, fault_time=min(max(i.fault_time, start), end), detected=min(max(i.detected, start), end))
        for i in found
    )
    return tuple(sorted(clipped, key=lambda i: (i.detected, i.fault_time, i.id)))


def _incident(
    name: str, own: Sequence[Event], segments: Sequence[Segment], ended: Mapping[int, float]
) -> Incident:
    by_kind = {e.kind: e for e in reversed(own)}
    data: dict[str, Any] = {}
    for e in own:
        data = {**e.data, **data} if e.kind in _OPENING else data
    opened = by_kind.get(EventKind.INCIDENT_OPENED)
    recovered = by_kind[EventKind.RECOVERED].data if EventKind.RECOVERED in by_kind else {}
    actions = [e.data for e in own if e.kind == EventKind.ACTION_TAKEN]
    action = actions[-1] if actions else {}
    attempt = own[0].attempt
    detected = _detected(own, by_kind, ended)
    last_step = max((s.end for s in segments if s.attempt == attempt and s.end <= detected), default=None)
    return Incident(
        id=name,
        attempt=attempt,
        detected=detected,
        fault_time=min(detected, _fault_time(by_kind, recovered, detected, last_step)),
        failure_class=text(data, "failure_class")
        or ("Hang" if EventKind.HANG_SUSPECTED in by_kind else "Unknown"),
        message=text(data, "message") or text(data, "reason"),
        rule=text(data, "rule"),
        culprit=_culprit(data, recovered),
        step=integer(data, "step") if opened else integer(data, "last_step"),
        depth=text(recovered, "depth") or text(action, "depth"),
        action=text(action, "action") or ("Recover" if recovered else ""),
        action_message=text(action, "message"),
        false_alarm=recovered.get("false_alarm") is True,
        last_good=number(recovered, "last_step_time"),
        first_new=number(recovered, "first_new_step_time"),
        steps_redone=integer(recovered, "steps_redone"),
        evidence=dicts(data, "evidence"),
        by_supervisor=opened is not None,
    )


def _detected(own: Sequence[Event], by_kind: Mapping[str, Event], ended: Mapping[int, float]) -> float:
    if EventKind.RANK_LOST in by_kind:
        event = by_kind[EventKind.RANK_LOST]
        return min(event.time, number(event.data, "detected") or event.time)
    first = min(e.time for e in own)
    opened = by_kind.get(EventKind.INCIDENT_OPENED)
    # The end of an attempt is seen before evidence is saved and the incident is classified and opened.
    return min(first, ended.get(opened.attempt, first)) if opened else first


def _fault_time(
    by_kind: Mapping[str, Event], recovered: Mapping[str, Any], detected: float, last_step: float | None
) -> float:
    if EventKind.INCIDENT_OPENED in by_kind:
        known = number(by_kind[EventKind.INCIDENT_OPENED].data, "fault_time")
        if known is not None:
            return known
    seconds = number(recovered, "seconds_detection")
    if seconds is not None:
        return detected - max(0.0, seconds)
    if EventKind.HANG_SUSPECTED in by_kind:
        hang = by_kind[EventKind.HANG_SUSPECTED]
        return hang.time - max(0.0, number(hang.data, "waited_seconds") or 0.0)
    return detected if last_step is None else last_step


def _culprit(data: Mapping[str, Any], recovered: Mapping[str, Any]) -> str:
    culprit = data.get("culprit")
    where = culprit if isinstance(culprit, dict) else data
    lost = recovered.get("lost")
    if isinstance(lost, list) and len(lost) > 1:
        return "ranks " + ", ".join(str(rank) for rank in lost)
    rank = integer(where, "rank")
    parts = ["" if rank is None else f"rank {rank}", text(where, "host") or text(where, "node")]
    return " on ".join(part for part in parts if part)


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


_WAIT_ENDS = frozenset(EventKind) - {EventKind.WAITING, EventKind.EVIDENCE_SAVED, EventKind.ATTEMPT_SUBMITTED}


def _waits(events: Sequence[Event]) -> tuple[Interval, ...]:
    waits, reason, begin = [], "", None
    for e in events:
        if e.kind == EventKind.WAITING:
            since = number(e.data, "since")
            if begin is None:
                begin = min(e.time, e.time if since is None else since)
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
