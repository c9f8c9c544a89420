"""Writes and reads the records of a run: events, claims, evidence. Only it writes for `ops` in a run.

Events of the supervisor have fixed places: the events of an attempt lie under a writer named after it, one
number a kind, those of an incident under its id. As creation is exclusive, an event happens once whoever
and however many supervisors write it, and the next one can complete what a killed one left out.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from steadyray.contract import SCHEMA, Event, EventKind, event

from ops import records
from ops.policy.events import number
from ops.policy.redaction import redact, redact_record
from ops.ports import Clock, RunStore

K = EventKind

ATTEMPT_SEQ = {
    K.RUN_CREATED: 1,
    K.ATTEMPT_CLAIMED: 2,
    K.ATTEMPT_SUBMITTED: 3,
    K.ATTEMPT_RUNNING: 4,
    K.ATTEMPT_ENDED: 5,
    K.RUN_FINISHED: 6,
}
INCIDENT_SEQ = {K.INCIDENT_OPENED: 1, K.EVIDENCE_SAVED: 2, K.ACTION_TAKEN: 2}
"""The k-th action of an incident has number 2 + k."""
SEQ = re.compile(r"/(\d+)\.json$")
WITHHELD_TRIES = 5
"""Of a number that other supervisors take as well."""


class Recorder:
    """Records of one run. Everything that is written passes the redaction first."""

    def __init__(self, store: RunStore, clock: Clock, hidden: tuple[str, ...] = ()) -> None:
        self.store = store
        self._clock = clock
        self._hidden = hidden
        self.host = socket.gethostname()
        self.id = f"supervisor-{self.host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._seq = 0

    def clean(self, text: str, *, cut: bool = False) -> str:
        return redact(text, self._hidden, cut=cut)

    def read(self, path: str) -> dict[str, Any] | None:
        """A JSON record; None if it is not there or not whole yet (not every writer is atomic)."""
        data = self.store.get(path)
        return None if data is None else records.decoded(data)

    def create(self, path: str, record: Mapping[str, Any]) -> bool:
        return self.store.create(path, self.encoded(record))

    def put(self, path: str, record: Mapping[str, Any]) -> None:
        self.store.put(path, self.encoded(record))

    def encoded(self, record: Mapping[str, Any]) -> bytes:
        """Redacted before it is encoded, as a pattern may not touch the quotes and escapes of JSON."""
        clean = redact_record({"schema": SCHEMA, **record}, self._hidden)
        # a lone surrogate has no UTF-8, but its backslash form is what JSON itself writes for it
        return json.dumps(clean, ensure_ascii=False).encode(errors="backslashreplace")

    def attempt_event(self, kind: EventKind, attempt: int, /, **data: Any) -> bool:
        """True if this call made it; False if it happened already."""
        return self._event(kind, _of_attempt(attempt), ATTEMPT_SEQ[kind], attempt, "", data)

    def incident_event(self, kind: EventKind, attempt: int, incident: str, k: int = 0, **data: Any) -> bool:
        return self._event(kind, _of_incident(incident), INCIDENT_SEQ[kind] + k, attempt, incident, data)

    def withheld_event(
        self, attempt: int, incident: str, key: str, since: float, data: dict[str, Any]
    ) -> bool:
        """Once per change of decision, whichever supervisor takes it; False if it stands there already.

        `key` is the decision; the same one is told again if it was not withheld meanwhile, at `since`.
        """
        writer = f"supervisor-withheld-{attempt:04d}"
        for _ in range(WITHHELD_TRIES):
            numbers = (SEQ.search(path) for path in self.store.list(f"events/{writer}"))
            last = max((int(m[1]) for m in numbers if m), default=0)
            told = records.event(self.read(event(writer, last)))
            if told and told.data.get("key") == key and told.time >= since:
                return False
            if self._event(K.ACTION_WITHHELD, writer, last + 1, attempt, incident, {"key": key, **data}):
                return True
        return False

    def own_event(self, kind: EventKind, attempt: int, **data: Any) -> bool:
        """Events that each supervisor may have its own of, such as Waiting."""
        self._seq += 1
        return self._event(kind, self.id, self._seq, attempt, "", data)

    def _event(
        self,
        kind: EventKind,
        writer: str,
        seq: int,
        attempt: int,
        incident: str,
        data: dict[str, Any],
        *,
        time: float | None = None,
    ) -> bool:
        when = self._clock.now() if time is None else time
        record = Event(when, kind, writer, seq, attempt, incident=incident, data=data)
        return self.create(event(writer, seq), record.to_json())

    def has_event(self, kind: EventKind, attempt: int) -> bool:
        return self.store.get(event(_of_attempt(attempt), ATTEMPT_SEQ[kind])) is not None

    def has_act(self, incident: str, k: int) -> bool:
        """Whether the event of the k-th act of an incident stands."""
        return self.store.get(event(_of_incident(incident), INCIDENT_SEQ[K.ACTION_TAKEN] + k)) is not None

    def finished(self) -> None:
        """The end of the run, from its result, whoever wrote that: completes what a killed one left out."""
        result = records.result(self.store)
        if result is None:
            return
        attempt = int(result.get("attempt") or 0)
        told = {key: result.get(key) for key in ("state", "failure_class", "message", "step")}
        writer, seq = _of_attempt(attempt), ATTEMPT_SEQ[K.RUN_FINISHED]
        self._event(K.RUN_FINISHED, writer, seq, attempt, "", told, time=number(result, "time"))


def _of_attempt(attempt: int) -> str:
    return f"supervisor-attempt-{attempt:04d}"


def _of_incident(incident: str) -> str:
    return f"supervisor-incident-{incident}"
