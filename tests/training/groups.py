"""Small groups of ranks as the driver sees them, for the tests of its decisions."""

from __future__ import annotations

from typing import Any

from steadyray.contract import FailureClass
from steadyray.messages import STAGES, MemberError, MemberState, Report
from steadyray.recovery import Answer, Breaking, GroupView, Loss, MemberView, decide

NOW = 1000.0
DATA, FORWARD, REDUCE, UPDATE = range(len(STAGES))
ERROR = MemberError("ValueError", "a column too many", "Traceback …")
HUNG = Loss("b", FailureClass.HANG, "no step")


def rank(id: str, *, node: str = "n1", **over: Any) -> MemberView:
    """A rank of generation 1 that trains at step 10 and answered just now."""
    report: dict[str, Any] = {
        "state": MemberState.TRAINING, "generation": 1, "rank": ord(id) - ord("a"), "step": 10,
        "stage": REDUCE, "fresh": False, "step_seconds": 0.1,
    }  # fmt: skip
    known = {"heard", "dead", "node_gone", "draining", "ended"}
    report |= {key: value for key, value in over.items() if key not in known}
    view: dict[str, Any] = {"heard": NOW} | {key: value for key, value in over.items() if key in known}
    return MemberView(id, node, Report(**report), **view)


def spare(id: str, **over: Any) -> MemberView:
    return rank(
        id, **{"state": MemberState.READY, "generation": 0, "step": 0, "fresh": True, "stage": 0} | over
    )


def out(id: str, **over: Any) -> MemberView:
    """A rank that has left generation 1."""
    return rank(id, **{"state": MemberState.READY, "stage": 0} | over)


def group(*members: MemberView, ranks: str = "ab", **over: Any) -> GroupView:
    """Ranks a and b of at most 2 and at least 1, whose last step was 0.1 s ago."""
    given: dict[str, Any] = {
        "now": NOW, "workers_min": 1, "workers_max": 2, "generation": 1 if ranks else 0,
        "last_step": 10, "last_step_at": NOW - 0.1, "waiting_since": NOW - 1,
    }  # fmt: skip
    return GroupView(members={m.id: m for m in members}, ranks=tuple(ranks), **given | over)


def breaking(*lost: Loss, seconds: float = 0.1, **over: bool) -> Breaking:
    return Breaking(NOW - seconds, lost, **over)


def lost(id: str, kind: FailureClass = FailureClass.WORKER_CRASH) -> Loss:
    return Loss(id, kind, "gone")


def quiet(*members: MemberView, seconds: float, **over: Any) -> Answer:
    return decide(group(*members, last_step_at=NOW - seconds, **over))
