"""What a person types to do an act by hand, or to take it back. Every such text stands here and nowhere else.

Used by `ops.notes`, which puts them into the events, and by `ops.policy.restraint`.
"""

from __future__ import annotations

from ops.policy.model import Action


def to_do(action: Action, run: str, cluster: str) -> str:
    """How a person does what was decided and not done."""
    match action:
        case Action.STOP:
            return f"steadyray job stop {run}; then, to go on: steadyray job resume {run}"
        case Action.RESUBMIT | Action.SUBMIT:
            return f"steadyray job stop {run}; then steadyray job resume {run}"
        case Action.RECREATE_CLUSTER:
            return f"{_make(cluster)}; then steadyray job stop {run} and steadyray job resume {run}"
        case Action.RESTART_KEEPER:
            return _make(cluster)
        case _:
            return ""


def to_undo(action: Action, run: str, cluster: str) -> str:
    """How a person takes an act back, as far as it can be."""
    match action:
        case Action.STOP:
            return (
                f"steadyray job resume {run} once the run has ended; a run that is retried goes on by itself"
            )
        case Action.RESUBMIT | Action.SUBMIT:
            return f"steadyray job stop {run} ends the new attempt; its checkpoints stay"
        case Action.FINISH:
            return f"steadyray job resume {run}"
        case Action.RECREATE_CLUSTER:
            return f"steadyray cluster down --name {cluster} ends the new one; the old one was gone before"
        case Action.RESTART_KEEPER:
            return f"steadyray cluster down --name {cluster} ends it with its cluster; nothing else was done"
        case _:
            return ""


def _make(cluster: str) -> str:
    if "://" in cluster:
        return f"start the cluster at {cluster} again"
    return f"steadyray cluster up --name {cluster} (with the --profile it was made of)"
