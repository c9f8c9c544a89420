"""What each failure class leads to: one row a class, with owner and date. Read by `resubmission`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from steadyray.contract import FailureClass

F = FailureClass


class JobAction(StrEnum):
    """What becomes of the job."""

    STOP = "stop"
    RETRY_ONCE = "retry once"
    RESUME = "resume"
    RESUME_ELSEWHERE = "resume elsewhere"
    ROLL_BACK = "roll back"
    WAIT = "wait"
    NOTHING = "nothing"


class NodeAction(StrEnum):
    """What becomes of the culprit's node, where the evidence names one."""

    NONE = "none"
    SUSPECT = "suspect"
    DRAIN = "drain and remove"
    LEAVES = "leaves by itself"


J, N = JobAction, NodeAction


@dataclass(frozen=True, slots=True)
class Treatment:
    """What a class leads to. `budget`: none (never retried), free, infrastructure or once."""

    budget: str
    advice: str
    job_action: JobAction
    node_action: NodeAction = NodeAction.NONE
    owner: str = "supervisor"
    since: str = "2026-11-30"


TREATMENTS: dict[FailureClass, Treatment] = {
    F.USER_ERROR: Treatment(
        "none", "Correct the script, then `job resume NAME --working-dir DIR`, which sends it anew.", J.STOP
    ),
    F.BAD_INPUT: Treatment(
        "none",
        "Put the data there, then `job resume NAME`; with --working-dir DIR if the script was corrected.",
        J.STOP,
    ),
    F.BAD_ENVIRONMENT: Treatment(
        "none",
        "Add what is missing to the cluster's environment, then `job resume NAME`; with --working-dir DIR if "
        "it was missing from the code.",
        J.STOP,
    ),
    F.OUT_OF_MEMORY_HOST: Treatment(
        "once",
        "Lower the batch or the loader's workers and `job resume NAME --working-dir DIR`, or use larger "
        "nodes.",
        J.RETRY_ONCE,
    ),
    F.OUT_OF_MEMORY_DEVICE: Treatment(
        "once",
        "Lower the batch size and `job resume NAME --working-dir DIR`, or use more GPUs.",
        J.RETRY_ONCE,
    ),
    F.PREEMPTED: Treatment("free", "Nothing to do: a preemption is never charged.", J.RESUME, N.LEAVES),
    F.MAINTENANCE: Treatment("free", "Nothing to do: maintenance is never charged.", J.RESUME, N.LEAVES),
    F.WORKER_CRASH: Treatment(
        "infrastructure", "Look at the worker's log if it comes again.", J.RESUME, N.SUSPECT
    ),
    F.NODE_LOST: Treatment(
        "infrastructure", "Look at the node if it comes again.", J.RESUME_ELSEWHERE, N.SUSPECT
    ),
    F.DRIVER_LOST: Treatment("infrastructure", "Look at the node if it comes again.", J.RESUME, N.SUSPECT),
    F.HARDWARE_FAULT: Treatment(
        "infrastructure", "Take the machine out and have it looked at.", J.RESUME_ELSEWHERE, N.DRAIN
    ),
    F.NETWORK_FAULT: Treatment("infrastructure", "Look at the silent rank's host.", J.RESUME, N.SUSPECT),
    F.COLLECTIVE_TIMEOUT: Treatment(
        "infrastructure", "Look at the silent rank's host and its data loader.", J.RESUME, N.SUSPECT
    ),
    F.HANG: Treatment("infrastructure", "Read the saved stacks.", J.RESUME, N.SUSPECT),
    F.STORAGE_TRANSIENT: Treatment("infrastructure", "Look at the storage if it comes again.", J.RESUME),
    F.CHECKPOINT_CORRUPT: Treatment("once", "The one before it is taken.", J.ROLL_BACK),
    F.DIVERGENCE: Treatment(
        "once",
        "Look at the batch at that step, or lower the learning rate and `job resume NAME --working-dir DIR`.",
        J.ROLL_BACK,
    ),
    F.HEAD_LOST: Treatment(
        "infrastructure", "Keep the head's state (GCS persistence) to keep jobs alive.", J.RESUME
    ),
    F.CAPACITY_MISSING: Treatment(
        "none",
        "Ask for less or raise the limits of the cluster's node groups, then `job resume NAME`; --wait-limit "
        "SECONDS lets it wait longer.",
        J.WAIT,
    ),
    F.QUEUED: Treatment(
        "none", "Raise the queue's quota, or the limit: `job resume NAME --wait-limit SECONDS`.", J.WAIT
    ),
    F.CONTROL_PLANE_BLIND: Treatment("none", "Look at the network between here and the cluster.", J.NOTHING),
    F.CANCELLED: Treatment("none", "`job resume NAME` continues it from its last checkpoint.", J.STOP),
    F.DEADLINE_EXCEEDED: Treatment(
        "none",
        "`job resume NAME --time-limit SECONDS`, with more than before; they count from then on.",
        J.STOP,
    ),
    F.UNKNOWN: Treatment(
        "infrastructure", "Read the evidence; a new rule may be worth its row.", J.RESUME, N.SUSPECT
    ),
}
