"""The words and figures of reports: every sentence that the screen and the page share stands here once."""

from __future__ import annotations

from steadyray.contract import Depth, FailureClass

from ops.policy.incidents import Incident
from ops.policy.ledger import Category, IncidentCost
from ops.report import Report

LABELS = {
    Category.PRODUCTIVE: "productive",
    Category.SAVING: "saving",
    Category.OTHER: "evaluation, closing",
    Category.UNMEASURED: "unmeasured",
    Category.STARTUP: "start-up",
    Category.WAITING: "waiting",
    Category.DETECTION: "detection",
    Category.RESTART: "restart",
    Category.REDONE: "lost or redone",
    Category.STOPPED: "stopped",
}
"""In the order in which the parts are shown: useful first, the price of faults last."""

MEANINGS = {
    Category.PRODUCTIVE: "Training steps done for the first time.",
    Category.SAVING: "Training stood still while a checkpoint was taken.",
    Category.OTHER: "Evaluation and other named phases, and closing down after the last step.",
    Category.UNMEASURED: "The script ran but reports no steps, so nobody can say how the time was used.",
    Category.STARTUP: "From the request to the first step: cluster, driver, workers, data, model.",
    Category.WAITING: "Waiting for machines or in a queue.",
    Category.DETECTION: "Something was broken and nobody had noticed yet.",
    Category.RESTART: "From the moment a fault was noticed to the next step.",
    Category.REDONE: "Steps done a second time, and work lost before it was saved.",
    Category.STOPPED: "Between an end and the moment somebody resumed the run. Not counted in goodput.",
}

COLOURS = {
    Category.PRODUCTIVE: "#2a9d6f",
    Category.SAVING: "#4c8bd6",
    Category.OTHER: "#8fa1b3",
    Category.UNMEASURED: "#6fb1c1",
    Category.STARTUP: "#b3a26b",
    Category.WAITING: "#9b7fd1",
    Category.DETECTION: "#c93a50",
    Category.RESTART: "#e4733f",
    Category.REDONE: "#e9b03b",
    Category.STOPPED: "#c9ced6",
}

CLASSES: dict[str, str] = {
    FailureClass.USER_ERROR: "the training code raised an error",
    FailureClass.BAD_INPUT: "the data or the settings could not be used",
    FailureClass.BAD_ENVIRONMENT: "a module, file or version was missing",
    FailureClass.OUT_OF_MEMORY_HOST: "a machine ran out of memory",
    FailureClass.OUT_OF_MEMORY_DEVICE: "a GPU ran out of memory",
    FailureClass.PREEMPTED: "the machine was taken away by its provider",
    FailureClass.MAINTENANCE: "the machine was taken out for maintenance",
    FailureClass.WORKER_CRASH: "a worker process died",
    FailureClass.NODE_LOST: "a node was lost with all its processes",
    FailureClass.DRIVER_LOST: "the process that leads the training was lost",
    FailureClass.HARDWARE_FAULT: "hardware failed",
    FailureClass.NETWORK_FAULT: "the network failed",
    FailureClass.COLLECTIVE_TIMEOUT: "workers could not reach each other in time",
    FailureClass.HANG: "a worker stood still while the others waited for it",
    FailureClass.STORAGE_TRANSIENT: "the storage did not answer for a while",
    FailureClass.CHECKPOINT_CORRUPT: "a checkpoint was damaged",
    FailureClass.DIVERGENCE: "the loss diverged",
    FailureClass.HEAD_LOST: "the head of the cluster was lost",
    FailureClass.CAPACITY_MISSING: "the machines that were asked for could not be had",
    FailureClass.QUEUED: "the job stood in a queue",
    FailureClass.CONTROL_PLANE_BLIND: "the cluster could not be asked",
    FailureClass.CANCELLED: "a person stopped the run",
    FailureClass.DEADLINE_EXCEEDED: "the time limit of the run was reached",
    FailureClass.UNKNOWN: "something failed and the evidence does not say what",
}

DEPTHS: dict[str, str] = {
    Depth.HOT: "the other workers went on at once, with the state of a living one",
    Depth.RELOAD: "new workers went on from the last checkpoint, in the same job",
    Depth.NEW_ATTEMPT: "the job was submitted again and went on from the last checkpoint",
    Depth.NEW_CLUSTER: "the cluster was made again and the job went on from the last checkpoint",
}

OUTCOMES = {
    "Succeeded": "The run finished.",
    "Failed": "The run failed.",
    "Stopped": "The run was stopped.",
}


def seconds_text(seconds: float | None) -> str:
    """A duration as a person says it: 0.62 s, 8.3 s, 2 min 5 s, 3 h 12 min."""
    if seconds is None:
        return "–"
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def figure(seconds: float) -> str:
    """Seconds for a column of a table; short ones keep what makes them more than nothing."""
    return f"{seconds:.2f}" if seconds < 9.995 else f"{seconds:.1f}"


def clock(seconds: float) -> str:
    """Time since the start of the run: 1:05, 2:03:09."""
    whole = max(0, int(seconds))
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f}%"


def metric(name: str, value: float) -> tuple[str, str]:
    """Name and value of a metric for people; only an accuracy between 0 and 1 is a share."""
    share = "acc" in name.lower() and 0 <= value <= 1
    return name.replace("_", " "), percent(value) if share else f"{value:.4g}"


def count(number: int, noun: str) -> str:
    """`1 step`, `no steps`, `12 steps`."""
    amount = "no" if number == 0 else str(number)
    return f"{amount} {noun}" if number == 1 else f"{amount} {noun}s"


def headline(report: Report) -> str:
    """The whole run in a few sentences, for somebody who was not there."""
    book = report.ledger
    faults = [c for c in book.incidents if not c.incident.false_alarm]
    sentences = [OUTCOMES.get(report.state, "The run is still going.")]
    if report.message and report.state in ("Failed", "Stopped"):
        sentences.append(report.message.rstrip(".") + ".")
    took = f"It took {seconds_text(book.total_seconds)}" if book.timeline.finished else "So far it took "
    took += "" if book.timeline.finished else seconds_text(book.total_seconds)
    sentences.append(f"{took} for {count(book.steps, 'step')}." if book.steps_done else f"{took}.")
    if not faults:
        sentences.append("Nothing went wrong on the way.")
    else:
        times = {1: "once", 2: "twice"}.get(len(faults), f"{len(faults)} times")
        lost = f"{count(book.steps_redone, 'step')} had to be done again"
        sentences.append(f"Something went wrong {times}; {lost}.")
    if book.goodput is not None:
        sentences.append(f"{percent(book.goodput)} of the time went into new training steps.")
    return " ".join(sentences)


def what_happened(incident: Incident) -> str:
    """`rank 1 on host-2: a worker process died`."""
    meaning = CLASSES.get(incident.failure_class, incident.failure_class)
    return f"{incident.culprit}: {meaning}" if incident.culprit else meaning


def what_was_done(incident: Incident) -> str:
    if incident.depth in DEPTHS:
        return DEPTHS[incident.depth]
    if incident.action_message:
        return incident.action_message.rstrip(".")
    return "nothing is recorded yet" if not incident.action else incident.action


def story(cost: IncidentCost, start: float) -> str:
    """One incident from fault to recovery, in plain words."""
    incident = cost.incident
    where = "" if incident.step is None else f", after step {incident.step}"
    happened = what_happened(incident)
    parts = [
        f"{happened[0].upper()}{happened[1:]} ({clock(incident.fault_time - start)} into the run{where})."
    ]
    if incident.silent_until is not None:
        parts.append(f"It was back after {seconds_text(cost.back_seconds)}.")
    else:
        noticed = seconds_text(max(0.0, incident.detected - incident.fault_time))
        parts.append(f"It was noticed after {noticed}.")
    done = what_was_done(incident)
    parts.append(f"{done[0].upper()}{done[1:]}.")
    if cost.recovery_seconds is not None:
        again = f"{count(cost.steps_lost, 'step')} had to be done again"
        took = seconds_text(cost.recovery_seconds)
        parts.append(f"From the last good step to the next new one it took {took}; {again}.")
    if incident.false_alarm:
        parts.append("It was a false alarm: the worker was only slow. Its patience was raised.")
    return " ".join(parts)
