"""Tells what happened to a run from its directory: status, log, and for each incident evidence, class,
rule, decision and what happens next. Called by `steadyray job status | list | logs | explain`."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from steadyray import contract
from steadyray.contract import Event, EventKind, FailureClass

from ops import records
from ops.errors import ClusterError, NotFoundError, StoreError
from ops.policy.events import dicts, integer, number, text
from ops.policy.model import Mode, RunState
from ops.policy.resubmission import WAITING_PHASES, state_of
from ops.policy.treatments import TREATMENTS
from ops.ports import RunStore
from ops.presence import is_looked_after
from ops.submission import read_spec
from ops.supervise import Supervisor

LOG_PAUSE_SECONDS = 1.0
SUMMARY = ("name", "state", "attempt", "step", "cluster", "message")


def read(store: RunStore, path: str) -> dict[str, Any]:
    return records.decoded(store.get(path) or b"") or {}


def newest_attempt(store: RunStore) -> int:
    found = [re.fullmatch(r"attempts/(\d+)/lease\.json", p) for p in store.list("attempts")]
    return max((int(m[1]) for m in found if m), default=0)


def status(store: RunStore, *, observes: bool = False) -> dict[str, Any]:
    """Stable keys, for people and scripts; from the run directory alone, so it works with no cluster.

    `observes`: this machine observes all runs, whatever their own mode is.
    """
    spec = read_spec(store)
    attempt = newest_attempt(store)
    now = read(store, contract.progress(attempt)) if attempt else {}
    result = records.result(store) or {}
    acts = incidents(store)
    wait = {} if result else waiting(store, attempt, now)
    story = wait.get("message") or text(now, "message") or (acts[-1]["decision"] if acts else "")
    alone = "" if result else nobody(store, spec.name if spec else "")
    return {
        "name": spec.name if spec else "",
        "state": result.get("state") or (RunState.WAITING if wait else _unfinished(store, attempt)),
        "attempt": attempt,
        "step": now.get("step", result.get("step")),
        "total_steps": now.get("total_steps"),
        "loss": now.get("loss"),
        "samples_per_second": now.get("samples_per_second"),
        "workers": now.get("world_size"),
        "phase": now.get("phase"),
        "checkpoint_step": now.get("checkpoint_step"),
        "message": text(result, "message") or " ".join(x for x in (story, alone) if x),
        "waiting_for": wait.get("reason"),
        "waiting_since": wait.get("since"),
        "failure_class": result.get("failure_class"),
        "exit_code": result.get("exit_code"),
        "incidents": len(acts),
        "mode": Mode.OBSERVE if observes else spec.mode if spec else "",
        "cluster": spec.cluster if spec else "",
        "command": " ".join(spec.entrypoint) if spec else "",
        "directory": store.url,
    }


def summary(store: RunStore) -> dict[str, Any]:
    try:
        full = status(store)
    except StoreError as error:  # one damaged run must not hide the others
        name = store.url.rstrip("/").rsplit("/", 1)[-1]
        full = dict.fromkeys(SUMMARY) | {"name": name, "state": "Damaged", "message": str(error)}
    return {k: full[k] for k in SUMMARY}


def _unfinished(store: RunStore, attempt: int) -> RunState:
    """Without asking the cluster, this is as far as the run directory tells."""
    if attempt == 0:
        return RunState.PENDING
    if store.get(contract.started(attempt)) is None:
        return RunState.STARTING
    if store.get(contract.event(f"supervisor-attempt-{attempt:04d}", 5)) is not None:
        return RunState.RECOVERING
    return RunState.RUNNING


GOES_ON = frozenset(
    {
        EventKind.ATTEMPT_CLAIMED,
        EventKind.ATTEMPT_SUBMITTED,
        EventKind.ATTEMPT_RUNNING,
        EventKind.ATTEMPT_ENDED,
        EventKind.ACTION_TAKEN,
    }
)
"""What ends a wait; there is no event of its own for that."""


WAITS = {EventKind.WAITING: ("reason", "message"), EventKind.ACTION_WITHHELD: ("cause", "said")}
"""And where each says why."""


def waiting(store: RunStore, attempt: int, progress: dict[str, Any]) -> dict[str, Any]:
    """What the run waits for, by the newest event about it: reason, message, since. Empty if nothing."""
    events = sorted(_events(store, "supervisor-"), key=lambda e: e.time)
    told = [e for e in events if e.kind in WAITS and e.attempt == attempt]
    if not told:
        return {}
    last = told[-1]
    over = any(e.kind in GOES_ON and e.time > last.time for e in events)
    if progress and text(progress, "phase") not in WAITING_PHASES:
        over = over or (number(progress, "time") or 0.0) > last.time
    if over:
        return {}
    reason, message = WAITS[EventKind(last.kind)]
    return {
        "reason": text(last.data, reason),
        "message": text(last.data, message),
        "since": number(last.data, "since") or last.time,
    }


def nobody(store: RunStore, name: str) -> str:
    """That nobody looks after an unfinished run, and what to type; empty if somebody does."""
    if is_looked_after(store, time.time()):
        return ""
    return f"Nobody looks after this run now; type: steadyray job run {name}"


def incidents(store: RunStore) -> list[dict[str, Any]]:
    """Every incident of the supervisor, in order, joined with its actions."""
    held = {e.incident: e for e in _events(store, "supervisor-withheld-")}
    grouped: dict[str, list[Event]] = defaultdict(list)
    for event in _events(store, "supervisor-incident-"):
        grouped[event.writer].append(event)
    found = []
    for told in grouped.values():
        opened = next((e for e in told if e.kind == EventKind.INCIDENT_OPENED), None)
        if opened and text(opened.data, "failure_class") in TREATMENTS:
            done = max((e.time for e in told if e.kind == EventKind.ACTION_TAKEN), default=float("-inf"))
            last = held.get(opened.incident)
            said = text(last.data, "said") if last and last.time > done else ""
            found.append({**_incident(opened, told), "withheld": said})
    return sorted(found, key=lambda i: float(i["time"]))


def _events(store: RunStore, writers: str) -> list[Event]:
    """Of the supervisors whose names begin so, in the order in which each wrote them."""
    paths = sorted(p for p in store.list("events") if p.startswith(f"events/{writers}"))
    return [event for path in paths if (event := records.event(read(store, path)))]


def _incident(opened: Event, told: list[Event]) -> dict[str, Any]:
    data = opened.data
    taken = [e.data for e in told if e.kind == EventKind.ACTION_TAKEN]
    files = [e.data.get("files") for e in told if e.kind == EventKind.EVIDENCE_SAVED]
    last = taken[-1] if taken else {}
    culprit = data.get("culprit")
    kind = FailureClass(data["failure_class"])
    return {
        "incident": opened.incident,
        "attempt": opened.attempt,
        "time": opened.time,
        "failure_class": kind,
        "rule": text(data, "rule"),
        "confidence": number(data, "confidence") or 0.0,
        "message": text(data, "message"),
        "culprit": {k: v for k, v in culprit.items() if v not in (None, "")}
        if isinstance(culprit, dict)
        else {},
        "evidence": [
            {"source": text(fact, "source"), "time": number(fact, "time"), "line": text(fact, "line")}
            for fact in dicts(data, "evidence")
        ],
        "files": [str(name) for names in files if isinstance(names, list) for name in names],
        "action": text(last, "action"),
        "decision": text(last, "message"),
        "reason": text(last, "reason"),
        "budget_left": integer(last, "budget_left"),
        "advice": TREATMENTS[kind].advice,
    }


def explain(supervisor: Supervisor) -> dict[str, Any]:
    """The whole story, with what would be decided at this moment. Changes nothing."""
    store = supervisor.store
    story: dict[str, Any] = {"run": supervisor.spec.name, "incidents": incidents(store)}
    result = records.result(store) or {}
    if result:
        state, message, hint = (text(result, key) for key in ("state", "message", "hint"))
        return story | {"state": state, "now": message, "next": hint}
    attempt = newest_attempt(store)
    if wait := waiting(store, attempt, read(store, contract.progress(attempt)) if attempt else {}):
        story["waiting"] = wait
    alone = nobody(store, supervisor.spec.name)
    try:
        view, decision = supervisor.explain()
    except (ClusterError, NotFoundError) as error:
        return story | {
            "state": "Unknown",
            "now": supervisor.record.clean(str(error)),
            "next": alone or "Nothing is done while the cluster is silent.",
        }
    coming = decision.next or ("" if alone else "Goes on; the supervisor looks again within a second.")
    return story | {
        "state": state_of(view, decision),
        "now": decision.message
        if decision.message.startswith(decision.reason)
        else f"{decision.reason}: {decision.message}",
        "next": " ".join(x for x in (alone, coming) if x),
    }


def as_text(story: dict[str, Any]) -> str:
    """For a terminal: one block an incident."""
    lines = [f"run {story['run']}: {story['state']}", f"  now:  {story['now']}"]
    if wait := story.get("waiting"):
        seconds = max(0.0, time.time() - float(wait["since"]))
        lines.append(f"  waits: {wait['reason']}, for {seconds:.0f} s: {wait['message']}")
    if story["next"]:
        lines.append(f"  next: {story['next']}")
    for item in story["incidents"]:
        lines += ["", f"incident {item['incident']} (attempt {item['attempt']}): {item['failure_class']}"]
        lines.append(f"  what:     {item['message']}")
        lines.append(f"  rule:     {item['rule']} (confidence {item['confidence']:.0%})")
        for fact in item["evidence"]:
            lines.append(
                f"  evidence: [{fact['source']}] {fact['line'].splitlines()[0] if fact['line'] else ''}"
            )
        if item["culprit"]:
            lines.append("  culprit:  " + ", ".join(f"{k} {v}" for k, v in item["culprit"].items()))
        if item["withheld"]:
            lines.append(f"  withheld: {item['withheld']}")
        if item["action"]:
            lines.append(f"  decision: {item['action']} ({item['reason']}): {item['decision']}")
        if item["budget_left"] is not None:
            lines.append(f"  budget:   {item['budget_left']} left")
        lines.append(f"  advice:   {item['advice']}")
        lines += [f"  file:     {name}" for name in item["files"]]
    if not story["incidents"]:
        lines.append("  Nothing went wrong.")
    return "\n".join(lines)


def log_lines(supervisor: Supervisor, *, follow: bool, attempt: int | None, lines: int) -> Iterator[str]:
    """Chunks of the driver's log: from the cluster where it has it, else what was saved.

    The end of a stream is never the end of the job: with `follow`, only a finished run ends it.
    """
    seen: list[str] = []
    shown = 0
    while True:
        newest = attempt or newest_attempt(supervisor.store)
        finished = records.result(supervisor.store) is not None
        if newest != shown:
            seen, shown = [], newest
        now = log_text(supervisor, newest, lines).splitlines()
        if fresh := new_lines(seen, now):
            yield "\n".join(fresh)
            seen = now
        if not follow or finished:
            return
        supervisor.clock.sleep(LOG_PAUSE_SECONDS)


def new_lines(seen: list[str], now: list[str]) -> list[str]:
    """What a tail shows that the one before did not: all after the longest end of it that begins this one."""
    for overlap in range(min(len(seen), len(now)), 0, -1):
        if seen[-overlap:] == now[:overlap]:
            return now[overlap:]
    return now


def log_text(supervisor: Supervisor, attempt: int, lines: int) -> str:
    if attempt == 0:
        return ""
    try:
        gatherer = supervisor.gatherer
        if tail := gatherer.client().log_tail(gatherer.id(attempt), lines):
            return gatherer.shown(tail)
    except (ClusterError, NotFoundError):
        pass
    saved = supervisor.store.get(contract.evidence(attempt, "driver.log"))
    return "\n".join((saved or b"").decode(errors="replace").splitlines()[-lines:])
