"""What to do about a run now: submit, resubmit, stop, wait, make the cluster again, finish, or nothing.

`decide` walks an ordered list of small rules named after the situation; first answer wins. Called by
`ops.supervise` once a tick, and by `ops.explain`, which shows the answer without acting on it.
"""

from __future__ import annotations

from collections.abc import Callable

from steadyray.contract import PHASE_WAITING, Depth, FailureClass

from ops.policy import progress, worker_errors
from ops.policy.model import (
    FINAL,
    Action,
    Api,
    Capacity,
    Culprit,
    Decision,
    JobStatus,
    RunState,
    RunView,
    Verdict,
)
from ops.policy.treatments import TREATMENTS, Treatment

F = FailureClass


BACKOFF_FIRST_SECONDS = 2.0
BACKOFF_MOST_SECONDS = 60.0
PENDING_GRACE_SECONDS = 3.0
"""A job is PENDING for a second or two on its way; only then is it said to wait for capacity."""
SETUP_GRACE_SECONDS = 30.0
"""The same where nothing is short: its environment is being set up, 10 s on a busy machine."""
UNKNOWN_GRACE_SECONDS = 3.0
"""A head that just came back lists its jobs a moment later than it answers."""
WORKER_NODE = "steadyray_worker"
"""Resource of every worker node of a cluster of ours and of no head; people know it by no such name."""
KEEPER_GRACE_SECONDS = 2.0
"""A cluster whose processes all die together is gone a moment later, which is another matter."""
RESUMED = "Resumed"
"""Reason of the one resubmission that a person asks for."""
WAITING_PHASES = frozenset({PHASE_WAITING})
"""Phases in which the library's driver waits for nodes."""


def decide(view: RunView) -> Decision:
    """The one thing to do about `view`. Never raises and never looks at anything else."""
    for rule in RULES:
        if decision := rule(view):
            return decision
    return Decision(Action.NONE, "Running", "The attempt runs.")


# --- the situations, in order -------------------------------------------------------------------------
def already_finished(view: RunView) -> Decision | None:
    if view.finished is None:
        return None
    return Decision(Action.NONE, "Finished", f"The run is {view.finished}.", final=view.finished)


def ended_well(view: RunView) -> Decision | None:
    """Before any wish to stop: what is done is done."""
    if view.job is None or view.job.status is not JobStatus.SUCCEEDED:
        return None
    return Decision(
        Action.FINISH, "Succeeded", "The command ended with exit code 0.", final=RunState.SUCCEEDED
    )


def keeper_lost(view: RunView) -> Decision | None:
    """Even a stop needs a head that answers. Harmless where the head is whole: a new keeper adopts it."""
    if view.api is Api.ANSWERS or not view.keeper_gone or view.api_age < KEEPER_GRACE_SECONDS:
        return None
    text = f"{_silence(view)} Its keeper is gone too: starts a new one, which starts a head that has died."
    return Decision(Action.RESTART_KEEPER, "KeeperGone", text)


def stop_requested(view: RunView) -> Decision | None:
    if not view.stop_requested:
        return None
    verdict = Verdict(F.CANCELLED, "StopRequested", "A person asked for the stop.", 1.0)
    return _end_job(view, verdict, RunState.STOPPED)


def time_limit_passed(view: RunView) -> Decision | None:
    limit = view.budgets.time_seconds
    if limit is None or view.run_seconds < limit:
        return None
    if _waits_for_capacity(view):
        message = f"The time limit of {limit:.0f} s passed while it waited. {shortage(view.capacity)}"
        return _end_job(view, Verdict(F.CAPACITY_MISSING, "TimeLimit", message, 1.0), RunState.FAILED)
    verdict = Verdict(F.DEADLINE_EXCEEDED, "TimeLimit", f"The time limit of {limit:.0f} s passed.", 1.0)
    return _end_job(view, verdict, RunState.FAILED)


def not_yet_submitted(view: RunView) -> Decision | None:
    """No attempt, or one that was claimed and never handed over (its supervisor died in between)."""
    if view.api is not Api.ANSWERS or view.job is not None or view.submitted or view.started:
        return None
    attempt = max(1, view.attempt)
    reason = "FirstAttempt" if view.attempt == 0 else "ClaimedNotSubmitted"
    return Decision(Action.SUBMIT, reason, f"Submits attempt {attempt}.", details={"attempt": attempt})


def cluster_silent(view: RunView) -> Decision | None:
    """Silence of an interface leads to nothing, unless the processes behind it are proven gone."""
    if view.api is Api.ANSWERS:
        return None
    if view.cluster_gone:
        verdict = view.verdict or Verdict(
            F.HEAD_LOST, "ClusterGone", "All processes of the cluster are gone.", 1.0
        )
        return _recreate(view, verdict)
    if progress.moving(view.progress, view.progress_age, view.budgets):
        return Decision(
            Action.NONE, F.CONTROL_PLANE_BLIND, f"{_silence(view)} Steps are made; nothing is done."
        )
    if view.api_age > view.budgets.blind_seconds:
        limit = view.budgets.blind_seconds
        text = f"The cluster was silent for {view.api_age:.0f} s, longer than {limit:.0f} s."
        return _finish(view, Verdict(F.HEAD_LOST, "ClusterSilent", text, 0.6), "NoAnswer")
    return Decision(Action.WAIT, F.CONTROL_PLANE_BLIND, f"{_silence(view)} Waits; unknown is not unhealthy.")


def resumed(view: RunView) -> Decision | None:
    """A person lets a failed or stopped run go on; its last attempt has ended, whatever of."""
    if not any(a.action == Action.RESUME and a.attempt == view.attempt for a in view.history):
        return None
    if view.job is not None and not view.job.status.ended:
        return None
    attempt = view.attempt + 1
    return Decision(
        Action.RESUBMIT,
        RESUMED,
        f"A person resumed the run. Attempt {attempt} continues {_from(view)}.",
        depth=Depth.NEW_ATTEMPT,
        details={"attempt": attempt, "incident": f"resume-{view.attempt:04d}"},
    )


def job_unknown(view: RunView) -> Decision | None:
    """The head answers and does not know a job that was handed over: it lost its state."""
    if view.job is not None:
        return None
    if view.unknown_age < UNKNOWN_GRACE_SECONDS:
        return Decision(Action.WAIT, "JobUnknown", "The head does not list the job (yet).")
    if progress.moving(view.progress, view.progress_age, view.budgets) and view.progress_age < 5.0:
        message = "The head does not know the job, but steps are made; nothing is done."
        return Decision(Action.NONE, F.CONTROL_PLANE_BLIND, message)
    return after_loss(
        view, view.verdict or Verdict(F.HEAD_LOST, "UnknownToHead", "The head lost its state.", 0.9)
    )


def pending(view: RunView) -> Decision | None:
    if view.job is None or view.job.status is not JobStatus.PENDING:
        return None
    short = bool(missing(view.capacity) or view.no_nodes)
    grace = PENDING_GRACE_SECONDS if short else SETUP_GRACE_SECONDS
    if view.pending_age < grace:
        return Decision(Action.NONE, "Starting", "The job starts.")
    return _wait_for_capacity(view, view.pending_age)


def ended_badly(view: RunView) -> Decision | None:
    if view.job is None or not view.job.status.ended:
        return None
    verdict = view.verdict or Verdict(F.UNKNOWN, "NoEvidence", "Nothing is known about this ending.", 0.0)
    return after_loss(view, verdict)


def ranks_wait(view: RunView) -> Decision | None:
    if view.progress is None or view.progress.phase not in WAITING_PHASES:
        return None
    return _wait_for_capacity(view, view.pending_age)


def retried_in_vain(view: RunView) -> Decision | None:
    """Ray Train tries a bug again and again; the second signal is that it came back, no step later."""
    error = worker_errors.in_vain(view.worker_errors)
    if error is None or view.job is None or view.job.status.ended:
        return None
    text = (
        f"Rank {error.rank} raised the same exception a second time after step {error.step}, "
        f"and Ray Train would try it again: {error.words[:300]}."
    )
    return Decision(
        Action.STOP,
        "RetriedInVain",
        text,
        verdict=Verdict(F.USER_ERROR, "SameExceptionAgain", text, 0.9, culprit=Culprit(rank=error.rank)),
        next=TREATMENTS[F.USER_ERROR].advice,
    )


def driver_hung(view: RunView) -> Decision | None:
    if not progress.hung(view.progress, view.progress_age, view.log_age, view.budgets):
        return None
    text = (
        f"No progress for {view.progress_age:.0f} s and no line in the log for {view.log_age:.0f} s; "
        "the driver hangs."
    )
    return Decision(
        Action.STOP,
        "DriverHung",
        text,
        verdict=Verdict(F.HANG, "DriverSilent", text, 0.8),
        next="Once the job has ended, the next attempt continues from the last checkpoint.",
    )


RULES: tuple[Callable[[RunView], Decision | None], ...] = (
    already_finished,
    ended_well,
    keeper_lost,
    stop_requested,
    time_limit_passed,
    cluster_silent,
    not_yet_submitted,
    resumed,
    job_unknown,
    pending,
    ended_badly,
    ranks_wait,
    retried_in_vain,
    driver_hung,
)


# --- after a loss -------------------------------------------------------------------------------------
def after_loss(view: RunView, verdict: Verdict) -> Decision:
    """An attempt is lost: retry it, or end the run. Shared by every way in which an attempt can end."""
    kind = verdict.failure_class
    treatment = TREATMENTS[kind]
    if kind is F.CANCELLED:
        return _finish(view, verdict, "Cancelled", RunState.STOPPED)
    if treatment.budget == "none":
        return _finish(view, verdict, "NotRetried")
    if _starts_over(view) and losses(view) >= 1:
        message = (
            "The script keeps nothing in $STEADYRAY_RUN_DIR, so it started over and lost its work a second "
            "time; let it save into $STEADYRAY_RUN_DIR and load from there "
            f"(steadyray job resume {view.run} --working-dir DIR), or allow this with --restart-ok."
        )
        return _finish(view, verdict, "StartsOver", message=message)
    used, most = _budget(view, kind, treatment)
    if used >= most:
        return _finish(
            view, verdict, "BudgetSpent", message=f"{verdict.message} {used} of {most} retries are used."
        )
    charged = treatment.budget != "free"
    blind = view.restart_ok and view.best_step == 0  # a script that names no steps cannot be judged by them
    missed = progress.strikes(view.history, best_step=view.best_step)
    if charged and not blind and missed >= view.budgets.strikes:
        message = f"{verdict.message} {missed} attempts in a row made no new step."
        return _finish(view, verdict, "NoForwardProgress", message=message)
    return _retry(view, verdict, charged, most - used - 1 if charged else most - used)


def losses(view: RunView) -> int:
    """Attempts lost before this one, charged or not: their work is gone either way."""
    return sum(1 for a in view.history if a.action == Action.RESUBMIT)


def backoff_seconds(view: RunView, kind: FailureClass) -> float:
    """None at the first loss; then doubling, up to a minute. A preemption never waits."""
    if TREATMENTS[kind].budget == "free":
        return 0.0
    earlier = progress.strikes(view.history, best_step=view.best_step) - 1
    if kind in {F.UNKNOWN, F.STORAGE_TRANSIENT}:
        earlier += 1
    if earlier <= 0:
        return 0.0
    return min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** (earlier - 1))


def _retry(view: RunView, verdict: Verdict, charged: bool, left: int) -> Decision:
    delay = backoff_seconds(view, verdict.failure_class)
    if view.incident_age < delay:
        text = f"{verdict.message} Waits {delay - view.incident_age:.0f} s before the next attempt."
        return Decision(
            Action.WAIT, "BackOff", text, verdict=verdict, delay_seconds=delay - view.incident_age
        )
    attempt = view.attempt + 1
    message = f"{verdict.message} Attempt {attempt} continues {_from(view)}."
    if _starts_over(view):
        message += " It keeps nothing in $STEADYRAY_RUN_DIR: without --restart-ok a second loss ends the run."
    depth = Depth.NEW_CLUSTER if _cluster_was_made(view) else Depth.NEW_ATTEMPT
    return Decision(
        Action.RESUBMIT,
        verdict.failure_class,
        message,
        verdict=verdict,
        charged=charged,
        depth=depth,
        delay_seconds=delay,
        budget_left=left,
        next=f"{left} more retries of this kind are left."
        if charged
        else "This is not charged to any budget.",
        details={"attempt": attempt},
    )


def _recreate(view: RunView, verdict: Verdict) -> Decision:
    """The attempt is charged by the resubmission that follows; a cluster that is never up ends the run."""
    made = sum(1 for a in view.history if a.action == Action.RECREATE_CLUSTER and a.attempt == view.attempt)
    if made >= view.budgets.strikes:
        return _finish(
            view, verdict, "ClusterDoesNotStay", message=f"{verdict.message} It was made {made} times."
        )
    used, most = _budget(view, F.HEAD_LOST, TREATMENTS[F.HEAD_LOST])
    if used >= most:
        return _finish(
            view, verdict, "BudgetSpent", message=f"{verdict.message} {used} of {most} retries are used."
        )
    return Decision(
        Action.RECREATE_CLUSTER,
        F.HEAD_LOST,
        f"{verdict.message} Makes the cluster again.",
        verdict=verdict,
        depth=Depth.NEW_CLUSTER,
        budget_left=most - used,
        next="Then the next attempt continues from the last checkpoint.",
    )


def _budget(view: RunView, kind: FailureClass, treatment: Treatment) -> tuple[int, int]:
    if treatment.budget == "free":
        return 0, 1
    if treatment.budget == "once":
        same = [a for a in view.history if a.charged and a.failure_class == kind]
        return len([a for a in same if a.best_step >= view.best_step]), view.budgets.once
    used = progress.charged_since(view.history, checkpoint_step=view.checkpoint_step)
    return used, view.budgets.infrastructure


def _finish(
    view: RunView, verdict: Verdict, reason: str, final: RunState = RunState.FAILED, message: str = ""
) -> Decision:
    return Decision(
        Action.FINISH,
        reason,
        message or verdict.message,
        verdict=verdict,
        final=final,
        next=TREATMENTS[verdict.failure_class].advice,
    )


def _end_job(view: RunView, verdict: Verdict, final: RunState) -> Decision:
    """Ends a job that still may run; finishes the run once it has ended."""
    if view.api is not Api.ANSWERS and view.submitted and not view.cluster_gone:
        return Decision(Action.WAIT, F.CONTROL_PLANE_BLIND, f"{_silence(view)} The stop waits for it.")
    if view.job is None or view.job.status.ended:
        return _finish(view, verdict, verdict.rule, final)
    is_pending = view.job.status is JobStatus.PENDING
    return Decision(
        Action.STOP,
        verdict.rule,
        f"{verdict.message} Ends the job.",
        verdict=verdict,
        next="Once the job has ended, the run is finished.",
        details={"pending": is_pending},
    )


# --- capacity -----------------------------------------------------------------------------------------
def _waits_for_capacity(view: RunView) -> bool:
    is_pending = view.job is not None and view.job.status is JobStatus.PENDING
    return is_pending or (view.progress is not None and view.progress.phase in WAITING_PHASES)


def _wait_for_capacity(view: RunView, waited: float) -> Decision:
    text = shortage(view.capacity, view.progress.message if view.progress else "")
    text += f" {view.no_nodes}." if view.no_nodes else ""
    limit = view.budgets.wait_seconds
    if waited > limit:
        verdict = Verdict(F.CAPACITY_MISSING, "WaitLimit", f"Waited {limit:.0f} s for capacity. {text}", 1.0)
        return _end_job(view, verdict, RunState.FAILED)
    message = f"{text} Waits for it, at most {limit:.0f} s; waiting is never charged."
    return Decision(Action.WAIT, F.CAPACITY_MISSING, message)


def shortage(capacity: Capacity, said: str = "") -> str:
    """Asked and available amounts, in words."""
    if said:
        return said if said.endswith(".") else said + "."
    if parts := missing(capacity):
        return f"The job asks for {'; '.join(parts)}."
    return "The job waits for a node that can take it."


def missing(capacity: Capacity) -> list[str]:
    """What is asked for and not there, one phrase a resource."""
    parts = []
    for name, amount in sorted(capacity.asked.items()):
        free, total = capacity.available.get(name, 0.0), capacity.total.get(name, 0.0)
        if name == WORKER_NODE and total < amount:
            parts.append("a worker node, the cluster has none")
        elif total < amount:
            parts.append(f"{name} {amount:g}, the cluster has {total:g}")
        elif free < amount:
            parts.append(f"{name} {amount:g}, {free:g} of {total:g} are free")
    return parts


# --- words --------------------------------------------------------------------------------------------
def _starts_over(view: RunView) -> bool:
    return not view.restart_ok and not view.keeps_state and view.checkpoint_step == 0


def _cluster_was_made(view: RunView) -> bool:
    return any(a.action == Action.RECREATE_CLUSTER and a.attempt == view.attempt for a in view.history)


def _from(view: RunView) -> str:
    if view.checkpoint_step:
        return f"from the checkpoint of step {view.checkpoint_step}"
    return "with what the script saved" if view.keeps_state else "from the start"


def _silence(view: RunView) -> str:
    if view.api is Api.PARTIAL:
        return f"The dashboard answers, but its Jobs API has not for {view.api_age:.0f} s (a partial outage)."
    return f"The cluster has not answered for {view.api_age:.0f} s."


def state_of(view: RunView, decision: Decision) -> RunState:
    """The state that a person sees after `decision`."""
    if decision.final in FINAL:
        return decision.final
    by_action = {
        Action.SUBMIT: RunState.SUBMITTING,
        Action.RESUBMIT: RunState.RECOVERING,
        Action.RECREATE_CLUSTER: RunState.RECOVERING,
        Action.RESTART_KEEPER: RunState.WAITING,
    }
    if decision.action in by_action:
        return by_action[decision.action]
    if decision.verdict is not None:
        return RunState.RECOVERING
    if decision.action is Action.WAIT:
        return RunState.WAITING
    if view.job is not None and view.job.status is JobStatus.PENDING:
        return RunState.STARTING
    return RunState.RUNNING if view.attempt else RunState.PENDING
