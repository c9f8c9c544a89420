"""Reads what is left of a run and puts it together for people: the use case behind `steadyray report`.

It only reads, it works while the run is still going, and it says what it could not read instead of
failing over it: a report is needed most when something was cut off in the middle. The numbers come from
`ops.policy.ledger`; `ops.report_summary` shows them on a screen, `ops.report_page` on a page.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from steadyray import contract
from steadyray.contract import Event, EventKind

from ops import records
from ops.errors import NotFoundError
from ops.policy.events import integer, number, text
from ops.policy.ledger import Category, IncidentCost, Ledger, ledger
from ops.policy.redaction import redact
from ops.policy.timeline import Attempt

EVIDENCE_TAIL_LINES = 40
"""Of each evidence file the report shows the end, where the reason usually stands."""

EVIDENCE_TAIL_BYTES = 8_000


UNTOLD = ("schema", "created")
"""Fields of the spec that tell a person nothing; the start stands on top of the page."""


class Reader(Protocol):
    """The reading half of `ops.ports.RunStore`: a report changes nothing."""

    def list(self, prefix: str = "") -> dict[str, int]:
        """Paths under a folder with their sizes in bytes."""

    def get(self, path: str) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class DecisionTaken:
    time: float
    incident: str
    action: str
    reason: str
    message: str
    depth: str = ""
    budget_left: int | None = None


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    path: str
    size: int
    tail: str


@dataclass(frozen=True, slots=True)
class LossPoint:
    step: int
    loss: float
    attempt: int
    generation: int


@dataclass(frozen=True, slots=True)
class Report:
    """All that the screen and the page show."""

    run: str
    state: str
    message: str
    ledger: Ledger
    losses: tuple[LossPoint, ...]
    decisions: tuple[DecisionTaken, ...]
    evidence: tuple[EvidenceFile, ...]
    failures: tuple[tuple[int, contract.Failure], ...]
    progress: contract.Progress | None
    metrics: dict[str, float] = field(default_factory=dict)
    model: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read, in words."""

    @property
    def quality(self) -> tuple[str, float] | None:
        """How good the model is: an accuracy before a loss, held-out data before other data."""
        names = sorted(self.metrics, key=_rank_of_metric)
        named = [name for name in names if _rank_of_metric(name) < len(_METRICS)]
        return (named[0], self.metrics[named[0]]) if named else None


_METRICS = (("test", "acc"), ("val", "acc"), ("acc",), ("test",), ("val",))


def _rank_of_metric(name: str) -> int:
    fits = (all(word in name.lower() for word in words) for words in _METRICS)
    return next((rank for rank, fit in enumerate(fits) if fit), len(_METRICS))


def read_report(reader: Reader, run: str) -> Report:
    """Read a run directory. Raises NotFoundError if it is empty, and StoreError."""
    problems: list[str] = []
    attempts = _files(reader, "attempts")
    if not attempts and not _files(reader, "events") and reader.get(contract.SPEC) is None:
        raise NotFoundError(f"There is no run {run!r}.", hint="See the runs there are: steadyray job list")
    events = tuple(read_events(reader, problems))
    spec = _json(reader, contract.SPEC, problems) or {}
    result = _json(reader, contract.RESULT, problems, needed=False) or {}
    book = ledger(events)
    finished = [e.data for e in book.timeline.events if e.kind == EventKind.TRAINING_FINISHED]
    progress = _progress(reader, book, problems)
    model = text(finished[-1], "model") if finished else text(result, "model")
    return Report(
        run=run,
        state=book.timeline.state or text(result, "state") or "Running",
        message=book.timeline.message or text(result, "message"),
        ledger=book,
        losses=tuple(
            LossPoint(step, loss, s.attempt, s.generation)
            for s in book.timeline.segments
            for step, loss in s.losses
        ),
        decisions=_decisions(book),
        evidence=tuple(_evidence(reader, attempts)),
        failures=tuple(_failures(reader, attempts, problems)),
        progress=progress,
        metrics=_metrics(finished, progress, result),
        model=model,
        environment=_environment(spec, book),
        problems=tuple(problems),
    )


# --- reading -----------------------------------------------------------------------------------------
def _files(reader: Reader, prefix: str) -> dict[str, int]:
    """In order, without the partial files that writers rename into place."""
    listed = reader.list(prefix).items()
    return {path: size for path, size in sorted(listed) if not PurePosixPath(path).name.startswith(".")}


def read_events(reader: Reader, problems: list[str]) -> Iterator[Event]:
    """All events of a run that can be read; what cannot is told in `problems`."""
    known = {kind.value for kind in EventKind}
    damaged = []
    for path in _files(reader, "events"):
        event = records.event(_record(reader.get(path) or b""))
        if event is None:
            damaged.append(path)
        elif event.kind in known:
            yield event
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        problems.append(
            f"{damaged[0]}{more} could not be read and is left out: times near it are less exact."
        )


def _json(reader: Reader, path: str, problems: list[str], *, needed: bool = True) -> dict[str, Any] | None:
    content = reader.get(path)
    if content is None:
        if needed:
            problems.append(f"{path} is missing.")
        return None
    data = _record(content)
    if data is None:
        problems.append(f"{path} is damaged or cut off.")
    return data


def _record(content: bytes) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] | None = _hide(records.decoded(content))
    except RecursionError:  # nested less than JSON's reader can bear, and more than we can
        return None
    return found


def _hide(value: Any) -> Any:
    """Without credentials: scripts and the training library write what they like into messages."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _hide(inner) for key, inner in value.items()}
    return [_hide(inner) for inner in value] if isinstance(value, list) else value


def _progress(reader: Reader, book: Ledger, problems: list[str]) -> contract.Progress | None:
    for attempt in reversed(book.timeline.attempts):
        data = _json(reader, contract.progress(attempt.number), problems, needed=False)
        if data is not None and integer(data, "step") is not None:
            return contract.Progress.from_json(data)
    return None


def _failures(
    reader: Reader, paths: Iterable[str], problems: list[str]
) -> Iterator[tuple[int, contract.Failure]]:
    for path in paths:
        parts = PurePosixPath(path).parts
        if parts[-1] != "failure.json" or len(parts) != 3 or not parts[1].isdigit():
            continue
        data = _json(reader, path, problems)
        if hint := records.hint({"message": "", **data}) if data else None:
            yield int(parts[1]), hint


def _evidence(reader: Reader, paths: Mapping[str, int]) -> Iterator[EvidenceFile]:
    for path, size in paths.items():
        content = reader.get(path) if "/evidence/" in path else None
        if content is not None:
            lines = content[-EVIDENCE_TAIL_BYTES:].decode("utf-8", "replace").splitlines()
            yield EvidenceFile(path, size, redact("\n".join(lines[-EVIDENCE_TAIL_LINES:])))


# --- putting together --------------------------------------------------------------------------------
def _decisions(book: Ledger) -> tuple[DecisionTaken, ...]:
    return tuple(
        DecisionTaken(
            time=e.time,
            incident=e.incident,
            action=text(e.data, "action"),
            reason=text(e.data, "reason"),
            message=text(e.data, "message"),
            depth=text(e.data, "depth"),
            budget_left=integer(e.data, "budget_left"),
        )
        for e in book.timeline.events
        if e.kind == EventKind.ACTION_TAKEN
    )


def _metrics(
    finished: Sequence[Mapping[str, Any]], progress: contract.Progress | None, result: Mapping[str, Any]
) -> dict[str, float]:
    sources = [result.get("metrics"), progress.metrics if progress else None]
    sources += [data.get("metrics") for data in finished]
    merged = {k: v for source in sources if isinstance(source, dict) for k, v in source.items()}
    return {str(k): value for k in merged if (value := number(merged, k)) is not None}


def _environment(spec: Mapping[str, Any], book: Ledger) -> tuple[tuple[str, str], ...]:
    """What was asked and where it ran, as pairs for a table."""
    created = next((e.data for e in book.timeline.events if e.kind == EventKind.RUN_CREATED), {})
    rows: dict[str, Any] = {**created, **{k: v for k, v in spec.items() if k not in UNTOLD}}
    rows["clusters"] = ", ".join(dict.fromkeys(a.cluster for a in book.timeline.attempts if a.cluster))
    hosts = [
        str(r["host"])
        for a in book.timeline.attempts
        for g in a.generations
        for r in g.ranks
        if r.get("host")
    ]
    rows["hosts"] = ", ".join(dict.fromkeys(hosts))
    return tuple((key, _plain(value)) for key, value in rows.items() if value not in (None, "", [], {}))


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return shlex.join(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def as_json(report: Report) -> dict[str, Any]:
    """The report for machines: keys are stable, times are wall clock seconds, durations seconds."""
    book = report.ledger
    return {
        "run": report.run,
        "state": report.state,
        "message": report.message,
        "start": book.timeline.start,
        "end": book.timeline.end,
        "finished": book.timeline.finished,
        "total_seconds": book.total_seconds,
        "goodput": book.goodput,
        "seconds": {c.value: book.seconds[c] for c in Category},
        "worker_seconds": {c.value: book.worker_seconds[c] for c in Category},
        "worker_hours": book.worker_hours,
        "steps": book.steps,
        "steps_redone": book.steps_redone,
        "mean_recovery_seconds": book.mean_recovery_seconds,
        "metrics": report.metrics,
        "model": report.model,
        "attempts": [_attempt_json(a) for a in book.timeline.attempts],
        "incidents": [_incident_json(cost) for cost in book.incidents],
        "problems": list(report.problems),
    }


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    keys = ("number", "claimed", "running", "ended", "cluster", "submission_id", "status", "failure_class")
    return {key: getattr(attempt, key) for key in keys} | {
        "world_sizes": [g.world_size for g in attempt.generations]
    }


def _incident_json(cost: IncidentCost) -> dict[str, Any]:
    incident = cost.incident
    keys = (
        "id", "attempt", "failure_class", "rule", "message", "culprit", "fault_time", "detected", "depth",
        "action", "false_alarm",
    )  # fmt: skip
    return {key: getattr(incident, key) for key in keys} | {
        "last_good": cost.last_good,
        "first_new": cost.first_new,
        "recovery_seconds": cost.recovery_seconds,
        "silent_seconds": None if incident.silent_until is None else cost.back_seconds,
        "steps_lost": cost.steps_lost,
        "seconds": {c.value: s for c, s in cost.seconds.items()},
    }
