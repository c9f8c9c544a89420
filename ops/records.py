"""Records of a run directory as what they should be. Scripts may write there too, so any may be damaged.

One that makes no sense is as good as none, with one exception: a result that cannot be read is told to a
person, since a run without one would go on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from steadyray import contract
from steadyray.contract import Event, Failure, FailureClass, Progress

from ops.errors import StoreError
from ops.policy.events import number
from ops.policy.model import Action, PastAction, RunState
from ops.ports import RunStore

T = TypeVar("T")
_EVENT, _FAILURE, _ACT = TypeAdapter(Event), TypeAdapter(Failure), TypeAdapter(PastAction)


def event(data: Mapping[str, Any] | None) -> Event | None:
    found = valid(_EVENT, data)
    return found if found is not None and math.isfinite(found.time) else None


def past_action(data: Mapping[str, Any] | None) -> PastAction | None:
    found = valid(_ACT, data)
    return found if found is not None and found.action in set(Action) and math.isfinite(found.time) else None


def hint(data: Mapping[str, Any] | None) -> Failure | None:
    found = valid(_FAILURE, data)
    return found if found is not None and found.failure_class in set(FailureClass) else None


def progress(data: Mapping[str, Any] | None) -> Progress | None:
    return Progress.from_json(dict(data)) if data and number(data, "step") is not None else None


def result(store: RunStore) -> dict[str, Any] | None:
    """How the run ended; None while it has not. Raises StoreError for one that cannot be read."""
    data = store.get(contract.RESULT)
    if data is None:
        return None
    try:
        found = dict(json.loads(data))
        RunState(found["state"]), int(found.get("attempt") or 0)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise StoreError(
            f"{store.url}/{contract.RESULT} is damaged: {type(error).__name__}: {error}",
            hint="remove that file; the run's supervisor then judges its end anew",
        ) from error
    return found


def decoded(data: bytes) -> dict[str, Any] | None:
    """A JSON object; None for what is none, or is nested beyond reason."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def valid(kind: TypeAdapter[T], data: Mapping[str, Any] | None) -> T | None:
    if data is None:
        return None
    try:
        return kind.validate_python(data)
    except ValidationError:
        return None
