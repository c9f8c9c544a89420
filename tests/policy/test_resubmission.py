"""What is decided in each situation, as tables over the pure policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from steadyray.contract import PHASE_WAITING, FailureClass, Progress

from ops.policy.model import (
    Action,
    Api,
    Budgets,
    Capacity,
    Decision,
    JobStatus,
    JobView,
    PastAction,
    RunState,
    RunView,
    Verdict,
)
from ops.policy.resubmission import WORKER_NODE, backoff_seconds, decide, shortage, state_of
from ops.policy.treatments import TREATMENTS

F = FailureClass
RUNNING = JobView(JobStatus.RUNNING)
PENDING = JobView(JobStatus.PENDING)
FAILED = JobView(JobStatus.FAILED, exit_code=1)
DONE = JobView(JobStatus.SUCCEEDED, exit_code=0)
WAITING = Progress(0, phase=PHASE_WAITING, message="1 of 2 workers are ready")
HUNG = {"progress": Progress(step=5, step_seconds=0.1), "best_step": 5, "progress_age": 61.0, "log_age": 61.0}


def view(**changes: Any) -> RunView:
    """A healthy running attempt of a script that keeps checkpoints, with changes."""
    healthy = RunView(
        run="r", attempt=1, submitted=True, started=True, job=RUNNING, keeps_state=True, checkpoint_step=3
    )
    return replace(healthy, **changes)


def lost(kind: FailureClass, **changes: Any) -> RunView:
    return view(job=FAILED, verdict=Verdict(kind, "Test", "It broke.", 1.0), **changes)


def past(
    attempt: int, *, step: int = 0, checkpoint: int = 0, kind: str = "NodeLost", charged: bool = True
) -> PastAction:
    return PastAction(f"s{attempt:04d}-1", 1, attempt, "Resubmit", kind, charged, step, checkpoint)


SITUATIONS: list[tuple[str, RunView, Action, str]] = [
    ("a finished run", view(finished=RunState.FAILED), Action.NONE, "Finished"),
    ("a new run", RunView(run="r"), Action.SUBMIT, "FirstAttempt"),
    (
        "an attempt that was claimed and never handed over",
        RunView(run="r", attempt=2),
        Action.SUBMIT,
        "ClaimedNotSubmitted",
    ),
    ("a running job", view(), Action.NONE, "Running"),
    ("a job that ended well", view(job=DONE), Action.FINISH, "Succeeded"),
    ("a stop asked for", view(stop_requested=True), Action.STOP, "StopRequested"),
    ("a stop asked for after the end", view(stop_requested=True, job=DONE), Action.FINISH, "Succeeded"),
    (
        "a stop before the first attempt",
        RunView(run="r", stop_requested=True),
        Action.FINISH,
        "StopRequested",
    ),
    (
        "a stop with a silent cluster",
        view(stop_requested=True, api=Api.SILENT, job=None),
        Action.WAIT,
        "ControlPlaneBlind",
    ),
    ("a passed time limit", view(budgets=Budgets(time_seconds=10), run_seconds=11), Action.STOP, "TimeLimit"),
    ("a pending job, just now", view(job=PENDING, pending_age=1), Action.NONE, "Starting"),
    (
        "a pending job that lacks a resource",
        view(job=PENDING, pending_age=5, capacity=Capacity({"GPU": 1.0})),
        Action.WAIT,
        "CapacityMissing",
    ),
    ("a pending job beyond its limit", view(job=PENDING, pending_age=3601), Action.STOP, "WaitLimit"),
    (
        "ranks that wait for nodes",
        view(progress=WAITING),
        Action.WAIT,
        "CapacityMissing",
    ),
    (
        "ranks that wait beyond the limit",
        view(progress=WAITING, pending_age=3601),
        Action.STOP,
        "WaitLimit",
    ),
    (
        "ranks that wait where nothing is to be waited for",
        view(progress=WAITING, pending_age=0.1, budgets=Budgets(wait_seconds=0)),
        Action.STOP,
        "WaitLimit",
    ),
    (
        "ranks that waited too long and whose job has ended",
        lost(F.CAPACITY_MISSING, progress=WAITING, pending_age=3603),
        Action.FINISH,
        "NotRetried",
    ),
    (
        "ranks that wait as the time limit passes",
        view(progress=WAITING, budgets=Budgets(time_seconds=10), run_seconds=11),
        Action.STOP,
        "TimeLimit",
    ),
    (
        "ranks that wait, of a driver that is silent meanwhile",
        view(**{**HUNG, "progress": WAITING, "progress_age": 2000.0, "log_age": 2000.0}),
        Action.WAIT,
        "CapacityMissing",
    ),
    ("a silent driver", view(**HUNG), Action.STOP, "DriverHung"),
    ("a driver that still logs", view(**{**HUNG, "log_age": 1.0}), Action.NONE, "Running"),
    ("a driver that still makes steps", view(**{**HUNG, "progress_age": 1.0}), Action.NONE, "Running"),
    (
        "a script that names no steps and is silent for a day",
        view(progress=None, progress_age=86400, log_age=86400),
        Action.NONE,
        "Running",
    ),
    ("a silent cluster", view(api=Api.SILENT, job=None), Action.WAIT, "ControlPlaneBlind"),
    (
        "a silent cluster whose job makes steps",
        view(api=Api.SILENT, job=None, progress=Progress(5), api_age=99999),
        Action.NONE,
        "ControlPlaneBlind",
    ),
    (
        "a cluster that is silent beyond the limit",
        view(api=Api.SILENT, job=None, api_age=1801),
        Action.FINISH,
        "NoAnswer",
    ),
    (
        "a cluster that is proven gone",
        view(api=Api.SILENT, job=None, cluster_gone=True),
        Action.RECREATE_CLUSTER,
        "HeadLost",
    ),
    (
        "a silent cluster whose keeper is gone",
        view(api=Api.SILENT, job=None, api_age=3, keeper_gone=True),
        Action.RESTART_KEEPER,
        "KeeperGone",
    ),
    (
        "the same while steps are made and a stop is wanted",
        view(
            api=Api.PARTIAL, job=None, api_age=3, keeper_gone=True, stop_requested=True, progress=Progress(5)
        ),
        Action.RESTART_KEEPER,
        "KeeperGone",
    ),
    (
        "processes that die one after the other",
        view(api=Api.SILENT, job=None, api_age=1, keeper_gone=True),
        Action.WAIT,
        "ControlPlaneBlind",
    ),
    (
        "a node that does not start",
        view(job=JobView(JobStatus.PENDING), pending_age=9, no_nodes="A node of group cpu did not start: x"),
        Action.WAIT,
        "CapacityMissing",
    ),
    ("a cluster that answers without its keeper", view(keeper_gone=True), Action.NONE, "Running"),
    ("a job that the head has just forgotten", view(job=None), Action.WAIT, "JobUnknown"),
    ("a job that the head has forgotten", view(job=None, unknown_age=5), Action.RESUBMIT, "HeadLost"),
    (
        "a forgotten job that makes steps",
        view(job=None, unknown_age=5, progress=Progress(5), progress_age=1),
        Action.NONE,
        "ControlPlaneBlind",
    ),
    ("a lost driver", lost(F.DRIVER_LOST), Action.RESUBMIT, "DriverLost"),
    ("an unknown ending, at once", lost(F.UNKNOWN), Action.WAIT, "BackOff"),
    ("an unknown ending, later", lost(F.UNKNOWN, incident_age=2.5), Action.RESUBMIT, "Unknown"),
    ("a user error", lost(F.USER_ERROR), Action.FINISH, "NotRetried"),
    (
        "a first loss of a script that starts over",
        lost(F.DRIVER_LOST, keeps_state=False, checkpoint_step=0),
        Action.RESUBMIT,
        "DriverLost",
    ),
    (
        "its second loss",
        lost(F.DRIVER_LOST, keeps_state=False, checkpoint_step=0, attempt=2, history=(past(1),)),
        Action.FINISH,
        "StartsOver",
    ),
    (
        "its second loss where that is allowed",
        lost(
            F.DRIVER_LOST,
            keeps_state=False,
            checkpoint_step=0,
            attempt=2,
            history=(past(1),),
            restart_ok=True,
            incident_age=9,
        ),
        Action.RESUBMIT,
        "DriverLost",
    ),
    (
        "a second checkpoint that is bad at the same place",
        lost(
            F.CHECKPOINT_CORRUPT, attempt=2, best_step=5, history=(past(1, step=5, kind="CheckpointCorrupt"),)
        ),
        Action.FINISH,
        "BudgetSpent",
    ),
    (
        "three attempts without a new step",
        lost(
            F.NODE_LOST,
            attempt=4,
            best_step=50,
            history=tuple(past(n, step=50, checkpoint=3) for n in (1, 2, 3)),
        ),
        Action.FINISH,
        "NoForwardProgress",
    ),
    (
        "steps but no new checkpoint in eight attempts",
        lost(
            F.NODE_LOST,
            attempt=9,
            best_step=90,
            history=tuple(past(n, step=10 * n, checkpoint=3) for n in range(1, 9)),
        ),
        Action.FINISH,
        "BudgetSpent",
    ),
    (
        "the same with a new checkpoint",
        lost(
            F.NODE_LOST,
            attempt=9,
            best_step=90,
            checkpoint_step=80,
            history=tuple(past(n, step=10 * n, checkpoint=3) for n in range(1, 9)),
        ),
        Action.RESUBMIT,
        "NodeLost",
    ),
    (
        "a head that lost its state, with no retry left (B07)",
        view(
            job=None,
            unknown_age=5,
            attempt=2,
            budgets=Budgets(infrastructure=1),
            history=(past(1, checkpoint=3),),
        ),
        Action.FINISH,
        "BudgetSpent",
    ),
    (
        "a hundred preemptions",
        lost(
            F.PREEMPTED,
            attempt=101,
            history=tuple(past(n, kind="Preempted", charged=False) for n in range(1, 101)),
        ),
        Action.RESUBMIT,
        "Preempted",
    ),
]


def test_a_wait_names_in_people_s_words_what_is_missing_and_the_node_that_did_not_start() -> None:
    capacity = Capacity({WORKER_NODE: 0.001})
    why = "A node of group cpu did not start: no memory"
    waits = view(job=JobView(JobStatus.PENDING), pending_age=9, capacity=capacity, no_nodes=why)
    message = decide(waits).message
    assert message.startswith(f"The job asks for a worker node, the cluster has none. {why}. Waits for it")


@pytest.mark.parametrize(("name", "seen", "action", "reason"), SITUATIONS, ids=[s[0] for s in SITUATIONS])
def test_each_situation_leads_to_its_act(name: str, seen: RunView, action: Action, reason: str) -> None:
    decision = decide(seen)
    assert (decision.action, decision.reason) == (action, reason), decision.message


NEVER_RETRIED = [k for k, t in TREATMENTS.items() if t.budget == "none"]


def test_every_class_has_a_treatment_with_advice_owner_and_date() -> None:
    assert set(TREATMENTS) == set(F)
    assert all(t.advice and t.owner and t.since for t in TREATMENTS.values())


@pytest.mark.parametrize("kind", NEVER_RETRIED)
def test_a_class_without_a_budget_ends_the_run_at_the_first_loss(kind: FailureClass) -> None:
    decision = decide(lost(kind))
    assert decision.action is Action.FINISH
    assert decision.final is (RunState.STOPPED if kind is F.CANCELLED else RunState.FAILED)
    assert decision.next, "a person must be told what to do"


@pytest.mark.parametrize("kind", [F.PREEMPTED, F.MAINTENANCE])
def test_preemption_is_neither_charged_nor_delayed(kind: FailureClass) -> None:
    decision = decide(lost(kind, attempt=5, history=tuple(past(n) for n in range(1, 5)), best_step=0))
    assert (decision.action, decision.charged, decision.delay_seconds) == (Action.RESUBMIT, False, 0.0)


def test_waiting_for_capacity_names_what_is_asked_and_what_is_there() -> None:
    """B22: nine workers on a cluster of four."""
    text = shortage(Capacity(asked={"CPU": 9.0, "GPU": 1.0}, total={"CPU": 4.0}, available={"CPU": 2.0}))
    assert text == "The job asks for CPU 9, the cluster has 4; GPU 1, the cluster has 0."


def test_a_time_limit_that_passes_in_the_queue_is_missing_capacity_and_not_a_slow_run() -> None:
    decision = decide(view(job=PENDING, budgets=Budgets(time_seconds=10), run_seconds=11))
    assert decision.verdict is not None
    assert decision.verdict.failure_class is F.CAPACITY_MISSING
    assert decision.details == {"pending": True}


def test_ranks_that_wait_are_given_up_with_what_the_library_says_of_them() -> None:
    decision = decide(view(progress=WAITING, pending_age=61, budgets=Budgets(wait_seconds=60)))
    assert decision.verdict is not None
    assert decision.verdict.failure_class is F.CAPACITY_MISSING
    assert "Waited 60 s for capacity. 1 of 2 workers are ready." in decision.message
    assert decision.details == {"pending": False}, "it runs, so it is stopped as running jobs are"


def test_a_script_that_starts_over_is_told_of_a_place_that_any_script_has() -> None:
    gone = lost(F.DRIVER_LOST, keeps_state=False, checkpoint_step=0, attempt=2, history=(past(1),))
    message = decide(gone).message
    assert "save into $STEADYRAY_RUN_DIR and load from there" in message
    assert "RESUME_FROM" not in message, "which is set for the library's own checkpoints only"


def test_the_pause_doubles_up_to_a_minute() -> None:
    pauses = []
    for n in range(1, 9):
        history = tuple(past(k, step=5) for k in range(1, n))
        pauses.append(backoff_seconds(lost(F.NODE_LOST, best_step=5, history=history), F.NODE_LOST))
    assert pauses == [0, 0, 2, 4, 8, 16, 32, 60]


def test_a_partial_outage_is_named_as_one() -> None:
    """B50: the dashboard's page loads, the Jobs API does not answer."""
    decision = decide(view(api=Api.PARTIAL, job=None, api_age=7))
    assert "partial outage" in decision.message
    assert decision.action is Action.WAIT


def test_a_cluster_that_does_not_stay_up_is_not_made_for_ever() -> None:
    made = tuple(PastAction("s0001-1", k, 1, "RecreateCluster", "HeadLost", False, 0) for k in (1, 2, 3))
    decision = decide(view(api=Api.SILENT, job=None, cluster_gone=True, history=made))
    assert (decision.action, decision.reason) == (Action.FINISH, "ClusterDoesNotStay")


@pytest.mark.parametrize(("name", "seen", "action", "reason"), SITUATIONS, ids=[s[0] for s in SITUATIONS])
def test_each_decision_speaks_to_a_person(name: str, seen: RunView, action: Action, reason: str) -> None:
    decision: Decision = decide(seen)
    assert decision.reason.isidentifier()
    assert decision.reason[0].isupper()
    assert decision.message.endswith(".")
    assert isinstance(state_of(seen, decision), RunState)
