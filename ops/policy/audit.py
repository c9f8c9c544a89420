"""What automation decided about each incident of a run, what was done, by whom, and what came of it.

Pure, from the events alone; `ops.audit` reads them for all runs and puts the entries together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steadyray.contract import Event, EventKind

from ops.policy.events import text
from ops.policy.incidents import Incident
from ops.policy.timeline import Timeline, timeline

LIBRARY = "training library"
"""Who recovers ranks within a job; supervisors have ids of their own."""
NOBODY = ""
OPEN = "still open"


@dataclass(frozen=True, slots=True)
class Entry:
    """One incident, or one act that belongs to none."""

    time: float
    run: str
    attempt: int
    failure_class: str
    decided: str
    """What observe mode would have decided: the same acts, whether they were done or not."""
    done: str
    who: str
    undo: str
    outcome: str
    withheld: bool = False
    incident: str = ""
    rule: str = ""
    reason: str = ""
    message: str = ""
    by_hand: str = ""


def entries(run: str, events: Iterable[Event]) -> tuple[Entry, ...]:
    """Newest first."""
    line = timeline(events)
    groups: dict[str, list[Event]] = defaultdict(list)
    for e in line.events:
        if e.kind in (EventKind.ACTION_TAKEN, EventKind.ACTION_WITHHELD):
            groups[e.incident or f"{e.writer}:{e.seq}"].append(e)
    opened = {i.id: i for i in line.incidents}
    found = [_of_incident(run, i, groups.pop(i.id, []), line) for i in opened.values()]
    for name, acts in groups.items():
        found += [_of_act(run, name, act, line) for act in acts]
    return tuple(sorted(found, key=lambda entry: entry.time, reverse=True))


def counts(found: Sequence[Entry]) -> list[dict[str, Any]]:
    """How many there are of each class and action, the most frequent first."""
    all_, held = Counter(map(_kind, found)), Counter(_kind(e) for e in found if e.withheld)
    rows = sorted(all_.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"failure_class": kind, "action": action, "incidents": n, "withheld": held[kind, action]}
        for (kind, action), n in rows
    ]


def _kind(entry: Entry) -> tuple[str, str]:
    return entry.failure_class, entry.decided


def _of_incident(run: str, i: Incident, acts: Sequence[Event], line: Timeline) -> Entry:
    taken = [a for a in acts if a.kind == EventKind.ACTION_TAKEN]
    held = [a for a in acts if a.kind == EventKind.ACTION_WITHHELD]
    newest: Mapping[str, Any] = (taken or held)[-1].data if acts else {}
    alone = "Wait" if i.silent_until is not None else i.action
    return Entry(
        time=i.detected,
        run=run,
        attempt=i.attempt,
        failure_class=i.failure_class,
        decided=_actions(acts) or alone,
        done=_actions(taken) or ("nothing" if held else alone),
        who=_who(taken) if acts else LIBRARY if i.action and i.silent_until is None else NOBODY,
        undo=text(newest, "undo"),
        outcome=_outcome(i, line),
        withheld=bool(held) and not taken,
        incident=i.id,
        rule=i.rule,
        reason=text(newest, "reason"),
        message=i.message,
        by_hand=text(newest, "by_hand"),
    )


def _of_act(run: str, name: str, act: Event, line: Timeline) -> Entry:
    """A keeper that was started, a stop that was withheld: nothing was lost yet."""
    held = act.kind == EventKind.ACTION_WITHHELD
    return Entry(
        time=act.time,
        run=run,
        attempt=act.attempt,
        failure_class=text(act.data, "failure_class") or "-",
        decided=text(act.data, "action"),
        done="nothing" if held else text(act.data, "action"),
        who=NOBODY if held else text(act.data, "who"),
        undo=text(act.data, "undo"),
        outcome=_afterwards(line, act.time, act.attempt),
        withheld=held,
        incident=act.incident,
        rule=text(act.data, "rule"),
        reason=text(act.data, "reason"),
        message=text(act.data, "message"),
        by_hand=text(act.data, "by_hand"),
    )


def _actions(acts: Sequence[Event]) -> str:
    return ", ".join(dict.fromkeys(text(a.data, "action") for a in acts))


def _who(acts: Sequence[Event]) -> str:
    return ", ".join(dict.fromkeys(text(a.data, "who") for a in acts if text(a.data, "who")))


def _outcome(i: Incident, line: Timeline) -> str:
    if i.false_alarm:
        return "a false alarm"
    if i.silent_until is not None:
        return "answered again"
    return _afterwards(line, i.detected, i.attempt + 1 if i.by_supervisor else i.attempt)


def _afterwards(line: Timeline, time: float, attempt: int) -> str:
    """The first step of that attempt or a later one after `time`, else the end, else that it is open."""
    for s in line.segments:
        if s.attempt >= attempt and s.end > time:
            return f"recovered at step {s.from_step + 1}"
    ended = [e for e in line.events if e.kind == EventKind.RUN_FINISHED and e.time >= time]
    if ended:
        return f"ended {text(ended[0].data, 'state')}"
    ran = [a.number for a in line.attempts if a.number >= attempt and a.running and a.running >= time]
    return f"attempt {ran[0]} runs" if ran else OPEN
