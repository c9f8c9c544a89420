"""The states of a run and the legal moves between them, each with the reason why it exists.

A move that is not in the table is a bug, which `ops.supervise` shows. docs/states.md has it for people.
"""

from __future__ import annotations

from ops.policy.model import FINAL, RunState

S = RunState

TRANSITIONS: dict[tuple[RunState, RunState], str] = {
    (S.PENDING, S.SUBMITTING): "an attempt was claimed",
    (S.PENDING, S.STOPPED): "a person stopped it before the first attempt",
    (S.PENDING, S.FAILED): "its time limit passed before the first attempt",
    (S.SUBMITTING, S.STARTING): "the cluster accepted the job",
    (S.SUBMITTING, S.RUNNING): "it was accepted and started between two looks",
    (S.SUBMITTING, S.WAITING): "the cluster does not take jobs at the moment",
    (S.SUBMITTING, S.RECOVERING): "the attempt ended between two looks",
    (S.SUBMITTING, S.SUCCEEDED): "a short job ended between two looks",
    (S.SUBMITTING, S.FAILED): "it ended between two looks, and its class is not retried",
    (S.SUBMITTING, S.STOPPED): "a person stopped it",
    (S.STARTING, S.SUBMITTING): "it was lost, and another supervisor claimed the next attempt",
    (S.STARTING, S.RUNNING): "the driver runs",
    (S.STARTING, S.WAITING): "what the job asks for is not there yet",
    (S.STARTING, S.RECOVERING): "the attempt was lost before it ran",
    (S.STARTING, S.SUCCEEDED): "a short job ended between two looks",
    (S.STARTING, S.FAILED): "the environment cannot be made, or the command does not exist",
    (S.STARTING, S.STOPPED): "a person stopped it",
    (S.WAITING, S.STARTING): "capacity came",
    (S.WAITING, S.RUNNING): "capacity came, or the cluster answers again",
    (S.WAITING, S.SUBMITTING): "the cluster takes jobs again",
    (S.WAITING, S.RECOVERING): "the attempt was lost while it waited",
    (S.WAITING, S.SUCCEEDED): "it ended while the cluster was silent",
    (S.WAITING, S.FAILED): "the limit of the wait passed",
    (S.WAITING, S.STOPPED): "a person stopped it",
    (S.RUNNING, S.SUBMITTING): "it was lost, and another supervisor claimed the next attempt",
    (S.RUNNING, S.STARTING): "it was lost, and another supervisor submitted the next attempt",
    (S.RUNNING, S.RECOVERING): "the attempt was lost, and its class is retried",
    (S.RUNNING, S.WAITING): "ranks wait for capacity, or the cluster is silent",
    (S.RUNNING, S.SUCCEEDED): "the command ended with exit code 0",
    (S.RUNNING, S.FAILED): "the attempt ended, and its class is not retried",
    (S.RUNNING, S.STOPPED): "a person stopped it",
    (S.RECOVERING, S.SUBMITTING): "the next attempt was claimed",
    (S.RECOVERING, S.STARTING): "another supervisor submitted the next attempt",
    (S.RECOVERING, S.RUNNING): "another supervisor's attempt already runs",
    (S.RECOVERING, S.WAITING): "the new cluster does not answer yet",
    (S.RECOVERING, S.FAILED): "a budget is used up",
    (S.RECOVERING, S.SUCCEEDED): "another supervisor's attempt ended well",
    (S.RECOVERING, S.STOPPED): "a person stopped it",
    (S.FAILED, S.PENDING): "a person resumed it",
    (S.STOPPED, S.PENDING): "a person resumed it",
}


def legal(before: RunState, after: RunState) -> bool:
    return before == after or (before, after) in TRANSITIONS


def reachable() -> frozenset[RunState]:
    """States that a new run can come to."""
    seen = {S.PENDING}
    while True:
        more = {b for a, b in TRANSITIONS if a in seen} - seen
        if not more:
            return frozenset(seen)
        seen |= more


def leavable() -> frozenset[RunState]:
    """States from which some final state can be reached."""
    seen = set(FINAL)
    while True:
        more = {a for a, b in TRANSITIONS if b in seen} - seen
        if not more:
            return frozenset(seen)
        seen |= more
