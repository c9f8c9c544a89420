"""Judgements about progress: ages from one's own clock, what counts as forward, when silence is a hang.

Called by `ops.supervise` once a tick. Times given in records of the job are never compared with ours:
an age starts at the moment at which *we* see a change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from steadyray.contract import Progress

from ops.policy.model import Api, Budgets, JobStatus, PastAction


@dataclass(frozen=True, slots=True)
class Watch:
    """Last seen value of each watched thing and the moment (own monotonic seconds) it last changed."""

    seen: dict[str, str] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)

    def observe(self, now: float, **values: str) -> Watch:
        """Values that differ from the last ones start a new age; absent keys keep theirs."""
        changed = {k: v for k, v in values.items() if self.seen.get(k) != v}
        if not changed:
            return self
        return Watch({**self.seen, **changed}, {**self.since, **dict.fromkeys(changed, now)})

    def age(self, key: str, now: float) -> float:
        return max(0.0, now - self.since.get(key, now))

    def age_of(self, key: str, value: str, now: float) -> float:
        """How long `key` has had this very value; 0 if it has another."""
        return self.age(key, now) if self.seen.get(key) == value else 0.0


STEPS_OF_SILENCE = 20.0
"""A script that reports from its own loop writes once a step, so its silence is measured in steps."""
UNMEASURED = 10.0
"""Until two steps were seen nobody knows how long one takes; the first ones compile and load."""
IN_A_PHASE = 30.0
"""A named phase (evaluation, a save) may be long and silent: with the default patience half an hour."""


def patience(progress: Progress | None, budgets: Budgets) -> float | None:
    """Seconds of silence of progress and log that make a driver hung; None means never.

    A script that never reported a step may be silent for hours and be well: its log would be a single
    signal, and a destructive act needs two. The library's own driver writes about once a second whatever
    its ranks do, so these allowances delay nothing where ranks hang: they are its business.
    """
    if progress is None:
        return None
    if progress.phase not in ("", "train"):
        return budgets.patience_seconds * IN_A_PHASE
    if progress.step_seconds is None:
        return budgets.patience_seconds * UNMEASURED
    return max(budgets.patience_seconds, STEPS_OF_SILENCE * progress.step_seconds)


def hung(progress: Progress | None, progress_age: float, log_age: float, budgets: Budgets) -> bool:
    limit = patience(progress, budgets)
    return limit is not None and progress_age > limit and log_age > limit


def moving(progress: Progress | None, progress_age: float, budgets: Budgets) -> bool:
    """A moving step counter is a veto on acts against what makes the steps."""
    limit = patience(progress, budgets)
    return limit is not None and progress_age <= limit


def charged_since(history: tuple[PastAction, ...], *, checkpoint_step: int) -> int:
    """Charged resubmissions since the last checkpoint that went beyond the one before it.

    A new checkpoint is progress that lasts; mere steps beyond it are lost again with the next driver.
    """
    return sum(1 for a in charged(history) if a.checkpoint_step >= checkpoint_step)


def strikes(history: tuple[PastAction, ...], *, best_step: int) -> int:
    """Charged attempts in a row, the one that just ended included, that made no step beyond the best."""
    marks = [0, *(a.best_step for a in charged(history)), best_step]
    count = 0
    for before, after in zip(reversed(marks[:-1]), reversed(marks[1:]), strict=True):
        if after > before:
            break
        count += 1
    return count


def charged(history: tuple[PastAction, ...]) -> list[PastAction]:
    return [a for a in history if a.charged and a.action == "Resubmit"]


def api_value(api: Api) -> str:
    """Partial and silent are the same silence to a job whose state cannot be read."""
    return "answers" if api is Api.ANSWERS else "silent"


def job_value(status: JobStatus | None) -> str:
    return status.value if status else "unknown"
