"""What the workers of a Ray Train script raised, and when Ray Train's own retries are in vain.

Ray Train starts its workers again after any exception, `max_failures` times. A bug comes back each
time, so the second one of the same kind without a new step in between ends the job. Called by
`ops.policy.resubmission`; written by `steadyray.ray_train` in the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ops.policy.events import integer, number, text
from ops.policy.failure_rules import CASCADE
from ops.policy.model import WorkerError


def from_records(records: Iterable[Any]) -> tuple[WorkerError, ...]:
    """Passes over what is no such record: the file is written by a process of the job."""
    found = []
    for record in records:
        if not isinstance(record, Mapping):
            continue
        time, rank, step = number(record, "time"), integer(record, "rank"), integer(record, "step")
        kind, message = text(record, "kind"), record.get("message")
        # two of no kind would be taken for one that came again, and end the job
        if kind and isinstance(message, str) and time is not None and rank is not None and step is not None:
            found.append(WorkerError(time, rank, kind, message, step))
    return tuple(found)


def in_vain(errors: Iterable[WorkerError]) -> WorkerError | None:
    """The exception of the script that came a second time, no further than the first time."""
    first: dict[tuple[str, str], WorkerError] = {}
    for error in sorted(errors, key=lambda e: e.time):
        if _follows_from_a_fault(error):
            continue
        key = (error.kind, re.sub(r"0x[0-9a-f]+|\d+", "#", error.message))
        before = first.setdefault(key, error)
        if error.time > before.time and error.step <= before.step:
            return error
        if error.step > before.step:
            first[key] = error
    return None


def _follows_from_a_fault(error: WorkerError) -> bool:
    """As where a peer was lost, or the process itself."""
    lost = error.kind.startswith(("Ray", "Actor", "Node", "WorkerCrashed", "LocalRaylet", "OutOfMemory"))
    return lost or re.search("|".join(CASCADE), error.words, re.MULTILINE) is not None
