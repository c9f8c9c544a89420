"""Puts each incident together from all events that carry its id; a part of `ops.policy.timeline`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steadyray.contract import Event, EventKind, FailureClass

from ops.policy.events import dicts, integer, number, text


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
    silent_until: float | None = None
    """When a cluster answered again whose silence cost the job nothing; None for all other incidents."""


_OPENING = (EventKind.INCIDENT_OPENED, EventKind.RANK_LOST, EventKind.HANG_SUSPECTED)


def gather(
    events: Sequence[Event], ends: Sequence[tuple[int, float]], start: float, end: float
) -> tuple[Incident, ...]:
    """All incidents between `start` and `end`; `ends` are attempt and end of each segment of steps.

    A Recovered that nothing opened is no incident: the group grew, or left a rank that was asked to go.
    """
    groups: dict[str, list[Event]] = defaultdict(list)
    for e in events:
        if e.kind == EventKind.ACTION_WITHHELD:
            continue  # what was not done says nothing about when the fault was
        if e.incident:
            groups[e.incident].append(e)
        elif e.kind in _OPENING:
            groups[f"{e.writer}:{e.seq}"].append(e)
    ended = {e.attempt: e.time for e in events if e.kind == EventKind.ATTEMPT_ENDED}
    found = [
        _incident(name, own, ends, ended)
        for name, own in groups.items()
        if any(e.kind in _OPENING for e in own)
    ]
    found = [*_mark_false_alarms(found, events), *_silences(events)]
    clipped = (
        replace(i, fault_time=min(max(i.fault_time, start), end), detected=min(max(i.detected, start), end))
        for i in found
    )
    return tuple(sorted(clipped, key=lambda i: (i.detected, i.fault_time, i.id)))


def _mark_false_alarms(found: list[Incident], events: Sequence[Event]) -> list[Incident]:
    """A driver learns later that a rank it had replaced was only slow: the last hang before was none."""
    for e in events:
        if e.kind != EventKind.RECOVERED or e.data.get("false_alarm") is not True:
            continue
        hangs = [i for i in found if i.failure_class == FailureClass.HANG and i.attempt == e.attempt]
        before = [i for i in hangs if i.detected <= e.time]
        if before:
            last = max(before, key=lambda i: i.detected)
            found = [replace(i, false_alarm=True) if i is last else i for i in found]
    return found


def _silences(events: Sequence[Event]) -> list[Incident]:
    """Each supervisor of a run notes the same silence; the longest account of it is the best."""
    found: list[Incident] = []
    for e in events:
        first, last = number(e.data, "start"), number(e.data, "end")
        if e.kind != EventKind.CLUSTER_SILENT or first is None or last is None or last < first:
            continue
        mine = _silence(e, first, last)
        same = [i for i in found if i.fault_time <= last and first <= (i.silent_until or first)]
        if all(last - first > (i.silent_until or 0.0) - i.fault_time for i in same):
            found = [*(i for i in found if i not in same), mine]
    return found


def _silence(e: Event, first: float, last: float) -> Incident:
    replaced = e.data.get("head_replaced") is True
    step = integer(e.data, "from_step")
    done = max(0, (integer(e.data, "to_step") or 0) - (step or 0))
    again = "a new head took over" if replaced else "it answered again by itself"
    return Incident(
        id=f"{e.writer}:{e.seq}",
        attempt=e.attempt,
        fault_time=first,
        detected=first,
        failure_class=FailureClass.HEAD_LOST if replaced else FailureClass.CONTROL_PLANE_BLIND,
        rule="HeadReplaced" if replaced else "NoAnswer",
        message=f"the cluster did not answer for {last - first:.0f} s",
        step=step,
        action="Wait",
        action_message=f"{again}; the job lived on ({done} steps meanwhile)",
        silent_until=last,
    )


def _incident(
    name: str, own: Sequence[Event], ends: Sequence[tuple[int, float]], ended: Mapping[int, float]
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
    last_step = max((end for of, end in ends if of == attempt and end <= detected), default=None)
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
