"""Ray Train's retries: a bug that comes back no step later is in vain, a fault or a later bug is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steadyray.contract import FailureClass

from ops.policy.model import Action, JobStatus, JobView, RunView, WorkerError
from ops.policy.resubmission import decide
from ops.policy.worker_errors import from_records, in_vain


def error(
    time: float, step: int, kind: str = "ValueError", message: str = "bad batch", rank: int = 1
) -> WorkerError:
    return WorkerError(time, rank, kind, message, step)


CASES = {
    "once": ([error(1, 9)], False),
    "on two ranks at one moment": ([error(1, 9, rank=0), error(1, 9, rank=1)], False),
    "again, no further": ([error(1, 9), error(2, 9)], True),
    "again, not even so far": ([error(1, 9), error(2, 4)], True),
    "again, on another rank": ([error(1, 9, rank=0), error(2, 9, rank=1)], True),
    "again, with another address": ([error(1, 9, message="at 0x7f1"), error(2, 9, message="at 0x7e2")], True),
    "again, further": ([error(1, 9), error(2, 12)], False),
    "again, further, and once more there": ([error(1, 9), error(2, 12), error(3, 12)], True),
    "another one": ([error(1, 9), error(2, 9, kind="KeyError")], False),
    "a lost worker": ([error(1, 9, kind="RayActorError"), error(2, 9, kind="RayActorError")], False),
    "a lost peer": (
        [error(t, 9, "RuntimeError", "gloo: Connection closed by peer [10.0.0.1]:123") for t in (1, 2)],
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_retry_is_in_vain_when_the_same_bug_came_back_no_step_later(case: str) -> None:
    errors, vain = CASES[case]
    assert (in_vain(errors) is not None) == vain


def test_a_job_whose_retries_are_in_vain_is_stopped_as_the_user_s_error() -> None:
    view = RunView("r", job=JobView(JobStatus.RUNNING), attempt=1, submitted=True, started=True)
    assert decide(view).action is Action.NONE
    seen = RunView(
        "r", job=JobView(JobStatus.RUNNING), attempt=1, submitted=True, started=True,
        worker_errors=(error(1, 9), error(2, 9)),
    )  # fmt: skip
    decision = decide(seen)
    assert (decision.action, decision.reason) == (Action.STOP, "RetriedInVain")
    assert decision.verdict is not None
    assert decision.verdict.failure_class is FailureClass.USER_ERROR
    assert decision.verdict.culprit.rank == 1


RECORDS = st.dictionaries(
    st.sampled_from(["time", "rank", "kind", "message", "step"]),
    st.none() | st.integers() | st.text(max_size=5) | st.floats() | st.lists(st.integers(), max_size=1),
)


@given(st.lists(RECORDS, max_size=4))
def test_whatever_the_job_has_written_is_read_without_an_error(records: list[dict[str, Any]]) -> None:
    in_vain(from_records(records))


@pytest.mark.parametrize(
    "odd", [{"kind": None}, {"kind": []}, {"message": None}, {"time": "1"}, {"step": True}]
)
def test_what_is_no_such_record_is_no_bug_that_came_back(odd: dict[str, Any]) -> None:
    told = [{"time": t, "rank": 0, "kind": "ValueError", "message": "bad", "step": 9} for t in (1.0, 2.0)]
    assert in_vain(from_records(told)) is not None
    assert in_vain(from_records([record | odd for record in told])) is None
