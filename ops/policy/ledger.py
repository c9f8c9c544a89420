"""Where each second and each step of a run went: goodput and every kind of badput.

Made from the events alone, so that anyone who has the run directory gets the same numbers, on any
machine, while the run lives or years later. Called by the report, by `job status` and by the benchmark.

Every second between RunCreated and RunFinished (or the last event of a run that still lives) belongs to
exactly one category. Several may claim a second (a phase inside a segment of steps, a second fault while
the first is being repaired): `_claims` gives each claim a layer, and the highest layer wins.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import pairwise

from steadyray.contract import Event, EventKind

from ops.policy.incidents import Incident
from ops.policy.timeline import Attempt, Segment, Timeline, timeline


class Category(StrEnum):
    """The names follow the badput breakdown of Google's ml-goodput-measurement (`goodput_utils.py`)."""

    PRODUCTIVE = "productive"
    """Steps done for the first time. Google: "time spent on steps that were kept"."""
    REDONE = "redone"
    """Steps done again, and work that was lost before it was reported ("wasted progress")."""
    STARTUP = "start-up"
    """From the request to the first step: claim, submission, driver, ranks, data, model."""
    DETECTION = "detection"
    """From a fault to the moment it was noticed (MTTD)."""
    RESTART = "restart"
    """From the detection to the next step ("infrastructure recovery from disruption")."""
    WAITING = "waiting"
    """For capacity or a queue. It counts against goodput, as in Meta's ETTR (arXiv 2410.21680)."""
    SAVING = "saving"
    """Training stood still for a checkpoint; what is written in the background costs nothing here."""
    OTHER = "other"
    """Evaluation and other named phases, and closing down after the last step."""
    UNMEASURED = "unmeasured"
    """A script ran that reports no steps: busy, but nobody can say with what."""
    STOPPED = "stopped"
    """Between an end and the moment a person resumed the run; the only one outside of goodput."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time with one owner; `incident` is the id of the incident that cost it, or empty."""

    start: float
    end: float
    category: Category
    incident: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class IncidentCost:
    """What one incident cost."""

    incident: Incident
    seconds: dict[Category, float]
    last_good: float | None
    first_new: float | None
    steps_lost: int
    """Steps that had been done and were done again because of it."""

    @property
    def back_seconds(self) -> float | None:
        """What a person is shown: `recovery_seconds`, or how long a cluster was silent beside its job."""
        silent = self.incident.silent_until
        return self.recovery_seconds if silent is None else max(0.0, silent - self.incident.fault_time)

    @property
    def recovery_seconds(self) -> float | None:
        """Last good step before the fault to the first *new* step after it; None if there is none.

        The start of the clock is the last good step because the moment of the fault is often unknown,
        the end is a *new* step because dashboards that count redone steps as training flatter everyone.
        """
        if self.last_good is None or self.first_new is None:
            return None
        return max(0.0, self.first_new - self.last_good)


@dataclass(frozen=True, slots=True)
class Ledger:
    timeline: Timeline
    slices: tuple[Slice, ...]
    seconds: dict[Category, float]
    worker_seconds: dict[Category, float]
    """Seconds times the number of ranks: GPU-seconds where a rank has a GPU, else CPU-seconds."""
    incidents: tuple[IncidentCost, ...]
    steps_done: int
    """Every step that was computed, those done again included."""
    steps_redone: int

    @property
    def total_seconds(self) -> float:
        return self.timeline.end - self.timeline.start

    @property
    def steps(self) -> int:
        return self.steps_done - self.steps_redone

    @property
    def goodput(self) -> float | None:
        """Productive / total time of the run; start-up and queue count, times stopped by a person do not.

        None where a script reports no steps. Google's ml-goodput-measurement calls it runtime goodput;
        Meta's ETTR (arXiv 2410.21680) has the same denominator. Slow steps are productive here.
        """
        counted = self.total_seconds - self.seconds[Category.STOPPED]
        if counted <= 0 or (self.steps_done == 0 and self.seconds[Category.UNMEASURED] > 0):
            return None
        return min(1.0, self.seconds[Category.PRODUCTIVE] / counted)

    @property
    def worker_hours(self) -> float:
        return math.fsum(self.worker_seconds.values()) / 3600

    @property
    def mean_recovery_seconds(self) -> float | None:
        """MTTR of the job: the mean of `IncidentCost.recovery_seconds` over what was recovered."""
        known = [s for cost in self.incidents if (s := cost.recovery_seconds) is not None]
        return math.fsum(known) / len(known) if known else None


def ledger(events: Iterable[Event]) -> Ledger:
    """Account for every second of the run. Never raises on missing, doubled or contradictory events."""
    line = timeline(events)
    steps = _count_steps(line)
    windows = tuple(_window(line, i, steps) for i in line.incidents if i.silent_until is None)
    slices = tuple(_paint(line, _claims(line, steps, windows)))
    return Ledger(
        timeline=line,
        slices=slices,
        seconds={c: math.fsum(s.seconds for s in slices if s.category is c) for c in Category},
        worker_seconds=_worker_seconds(line, slices),
        incidents=_costs(line, windows, slices, steps),
        steps_done=sum(part.to_step - part.from_step for part in steps),
        steps_redone=sum(part.to_step - part.from_step for part in steps if part.redone and part.reported),
    )


# --- which steps were new ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Steps:
    start: float
    end: float
    from_step: int
    to_step: int
    redone: bool
    attempt: int
    generation: int
    save_seconds: float = 0.0
    reported: bool = True


def _count_steps(line: Timeline) -> list[_Steps]:
    """Split the segments at the highest step reached before: up to it steps are redone, above it new."""
    done: list[_Steps] = []
    highest = min((s.from_step for s in line.segments), default=0)
    for position, segment in enumerate(line.segments):
        done += _split(segment, highest)
        highest = max(highest, segment.to_step)
        following = line.segments[position + 1] if position + 1 < len(line.segments) else None
        if following is None or following.attempt != segment.attempt:
            resumed = 0 if following is None else following.from_step
            unreported = _unreported(line, segment, highest, resumed)
            if unreported is not None:
                done.append(unreported)
                highest = max(highest, unreported.to_step)
    return done


def _split(segment: Segment, highest: int) -> list[_Steps]:
    rest = max(segment.start, segment.end - segment.save_seconds)
    middle = min(max(highest, segment.from_step), segment.to_step)
    share = (middle - segment.from_step) / (segment.to_step - segment.from_step)
    at = segment.start + share * (rest - segment.start)
    at = segment.end if middle == segment.to_step else at
    where = (segment.attempt, segment.generation)
    saving = segment.end - rest
    parts = []
    if middle > segment.from_step:
        own = saving if middle == segment.to_step else 0.0
        parts.append(_Steps(segment.start, at, segment.from_step, middle, True, *where, own))
    if middle < segment.to_step:
        parts.append(_Steps(at, segment.end, middle, segment.to_step, False, *where, saving))
    return parts


def _unreported(line: Timeline, last: Segment, highest: int, resumed: int) -> _Steps | None:
    """New steps that a driver had done but not yet reported in an event when it was lost.

    Its progress file tells of them, which the supervisor copies into AttemptEnded and the incident; and so
    does the next attempt that goes on from a checkpoint beyond them (`resumed`).
    """
    known = [i for i in line.incidents if i.attempt == last.attempt and i.by_supervisor]
    ends = [a.ended for a in line.attempts if a.number == last.attempt and a.ended is not None]
    steps = [i.step for i in known] + [a.step for a in line.attempts if a.number == last.attempt]
    reached = max([resumed, *(step for step in steps if step is not None)])
    if reached <= highest:
        return None
    until = max(last.end, min([*(i.fault_time for i in known), *ends], default=last.end))
    where = (last.attempt, last.generation)
    return _Steps(last.end, until, highest, reached, False, *where, reported=False)


# --- incidents ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Window:
    """One incident on the time axis: lost work, then blindness until `detected`, then repair until `back`."""

    incident: Incident
    lost_from: float
    fault: float
    detected: float
    back: float
    caught_up: float
    last_good: float | None
    first_new: float | None
    after: Category


def _window(line: Timeline, incident: Incident, steps: Sequence[_Steps]) -> _Window:
    before = [p for p in steps if p.end <= incident.detected and p.attempt <= incident.attempt]
    last_good = max((p.end for p in before), default=None)
    highest = max((p.to_step for p in before), default=0)
    following = [p for p in steps if p.attempt >= incident.attempt and p.end > incident.detected]
    new = [p for p in following if p.to_step > highest and not p.redone]
    first_new = min((_time_of(p, max(highest, p.from_step) + 1) for p in new), default=None)
    if incident.first_new is not None and not incident.steps_redone:
        first_new = (
            incident.first_new
        )  # to the millisecond; a driver's first step after a reload is no new one
    back = min((p.start for p in following), default=None)
    if back is None:
        back = _next_run(line, incident.detected)
    over = _over(line, incident)
    return _Window(
        incident=incident,
        lost_from=min(_lost_from(steps, incident), incident.fault_time),
        fault=incident.fault_time,
        detected=incident.detected,
        back=max(incident.detected, min(over, line.end if back is None else back)),
        caught_up=line.end if first_new is None else first_new,
        last_good=incident.last_good if incident.last_good is not None else last_good,
        first_new=first_new,
        after=Category.RESTART if back is not None or not line.finished else Category.OTHER,
    )


def _time_of(part: _Steps, step: int) -> float:
    end = part.end - part.save_seconds
    return part.start + (end - part.start) * (step - part.from_step) / (part.to_step - part.from_step)


def _lost_from(steps: Sequence[_Steps], incident: Incident) -> float:
    ends = [p.end for p in steps if p.attempt == incident.attempt and p.end <= incident.detected]
    return max(ends, default=math.inf)


def _next_run(line: Timeline, at: float) -> float | None:
    """A plain script is back when its next attempt runs."""
    runs = (a.running for a in line.attempts if not a.reports)
    return min((t for t in runs if t is not None and t >= at), default=None)


def _next_work(line: Timeline, steps: Sequence[_Steps], at: float) -> float:
    starts = [p.start for p in steps if p.start >= at]
    return min(starts, default=_next_run(line, at) or line.end)


def _over(line: Timeline, incident: Incident) -> float:
    """When repair was given up: the end of the run, or the end before a person resumed it."""
    return min((p.start for p in line.pauses if p.start >= incident.detected), default=line.end)


def _costs(
    line: Timeline, windows: Sequence[_Window], slices: Sequence[Slice], steps: Sequence[_Steps]
) -> tuple[IncidentCost, ...]:
    """In the order of the incidents. A silence that the job lived through has cost it nothing."""
    known = {window.incident.id: _cost(window, slices, steps) for window in windows}
    return tuple(known.get(i.id) or IncidentCost(i, {}, None, None, 0) for i in line.incidents)


def _cost(window: _Window, slices: Sequence[Slice], steps: Sequence[_Steps]) -> IncidentCost:
    own: dict[Category, float] = defaultdict(float)
    for part in slices:
        if part.incident == window.incident.id:
            own[part.category] += part.seconds
    redone = [
        p.to_step - p.from_step
        for p in steps
        if p.redone and p.reported and window.detected <= p.end and p.start < window.caught_up
    ]
    stated = window.incident.steps_redone
    return IncidentCost(
        incident=window.incident,
        seconds=dict(own),
        last_good=window.last_good,
        first_new=window.first_new,
        steps_lost=sum(redone) if stated is None else max(0, stated),
    )


# --- painting ----------------------------------------------------------------------------------------
class _Layer(IntEnum):
    """Who wins a second that several claim; a higher one wins, and in one layer the later start."""

    BASE = 0
    RAN = 1
    REPAIR = 2
    BLIND = 3
    WAIT = 4
    PAUSE = 5
    STEPS = 6
    SAVE = 7
    PHASE = 8


Claim = tuple[float, float, _Layer, Category, str]


def _claims(line: Timeline, steps: Sequence[_Steps], windows: Sequence[_Window]) -> Iterator[Claim]:
    yield line.start, line.end, _Layer.BASE, Category.STARTUP, ""
    yield from _between_steps(line, steps)
    for attempt in line.attempts:
        if attempt.running is not None and not attempt.reports:
            yield attempt.running, _ended(line, attempt), _Layer.RAN, Category.UNMEASURED, ""
    for w in windows:
        name = w.incident.id
        # A driver reports all steps before it regroups its ranks; one that is lost takes some with it.
        lost = Category.REDONE if w.incident.by_supervisor else Category.DETECTION
        yield w.lost_from, w.fault, _Layer.REPAIR, lost, name
        yield w.fault, w.detected, _Layer.BLIND, Category.DETECTION, name
        yield w.detected, w.back, _Layer.REPAIR, w.after, name
    for wait in line.waits:
        yield wait.start, wait.end, _Layer.WAIT, Category.WAITING, _owner(windows, wait.start)
    for pause in line.pauses:
        yield pause.start, pause.end, _Layer.PAUSE, Category.STOPPED, ""
        yield pause.end, _next_work(line, steps, pause.end), _Layer.REPAIR, Category.STARTUP, ""
    for part in steps:
        category = Category.REDONE if part.redone else Category.PRODUCTIVE
        owner = _owner(windows, part.start) if part.redone else ""
        yield part.start, part.end, _Layer.STEPS, category, owner
        yield part.end - part.save_seconds, part.end, _Layer.SAVE, Category.SAVING, ""
    for phase in line.phases:
        category = Category.SAVING if phase.label in ("save", "checkpoint") else Category.OTHER
        yield phase.start, phase.end, _Layer.PHASE, category, ""


def _ended(line: Timeline, attempt: Attempt) -> float:
    return line.end if attempt.ended is None else attempt.ended


def _owner(windows: Sequence[_Window], at: float) -> str:
    """The last incident noticed before `at` that had not been made good by then."""
    open_ = [w for w in windows if w.detected <= at < w.caught_up]
    return open_[-1].incident.id if open_ else ""


def _between_steps(line: Timeline, steps: Sequence[_Steps]) -> Iterator[Claim]:
    """Gaps: inside a generation they belong to the step that follows, between two to the change."""
    starts = sorted((p.start, p.redone, p.attempt, p.generation, p.from_step) for p in steps)
    finished = max((e.time for e in line.events if e.kind == EventKind.TRAINING_FINISHED), default=math.inf)
    for part in steps:
        index = bisect_right(starts, (part.end, False, -1, -1, -1))
        if index == len(starts):
            yield part.end, line.end, _Layer.RAN, Category.OTHER, ""
            continue
        start, redone, attempt, generation, from_step = starts[index]
        same = (attempt, generation, from_step) == (part.attempt, part.generation, part.to_step)
        category = Category.REDONE if redone else Category.PRODUCTIVE
        if not same:
            category = Category.RESTART if part.end < finished else Category.OTHER
        yield part.end, start, _Layer.RAN, category, ""


def _paint(line: Timeline, claims: Iterable[Claim]) -> Iterator[Slice]:
    """Sweep over the time axis; at each moment the highest claim that is open there owns the time."""
    clipped = sorted(
        (max(start, line.start), min(end, line.end), layer, category, owner)
        for start, end, layer, category, owner in claims
        if min(end, line.end) > max(start, line.start)
    )
    cuts = sorted({t for start, end, *_ in clipped for t in (start, end)})
    open_: list[tuple[int, int, float, Category, str]] = []
    position = 0
    current: Slice | None = None
    for left, right in pairwise(cuts):
        while position < len(clipped) and clipped[position][0] <= left:
            _, end, layer, category, owner = clipped[position]
            heapq.heappush(open_, (-layer, -position, end, category, owner))
            position += 1
        while open_[0][2] <= left:
            heapq.heappop(open_)
        _, _, _, category, owner = open_[0]
        if current and (current.category, current.incident) == (category, owner):
            current = Slice(current.start, right, category, owner)
            continue
        if current:
            yield current
        current = Slice(left, right, category, owner)
    if current:
        yield current


def _worker_seconds(line: Timeline, slices: Sequence[Slice]) -> dict[Category, float]:
    """Ranks times seconds. A generation holds its ranks until the next one or the end of its attempt."""
    total = dict.fromkeys(Category, 0.0)
    starts = [s.start for s in slices]
    for attempt in line.attempts:
        for generation in attempt.generations:
            at = max(0, bisect_right(starts, generation.start) - 1)
            for part in slices[at:]:
                if part.start >= generation.end:
                    break
                overlap = min(part.end, generation.end) - max(part.start, generation.start)
                total[part.category] += max(0.0, overlap) * generation.world_size
    return total
