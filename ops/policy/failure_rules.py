"""The rules by which an ended attempt gets its class: data, in order, first hit wins. Read by `failure`.

Root before cascade: what Ray says about the job, roots found in the log, the last exception, exit codes.
To add one: a row at the place that its certainty deserves, with owner and date, and a sample of the text
in tests/policy/test_failure_rules.py. Texts are those of Ray 2.60 and PyTorch 2.15.
"""

from __future__ import annotations

from dataclasses import dataclass

from steadyray.contract import FailureClass

F = FailureClass


CASCADE = (
    r"^ray\.exceptions\.(?!RayTaskError|OutOfMemoryError|RuntimeEnv|.*raised in its creation task)",
    r"^(?:ray\.train\.\S*)?(?:TrainingFailedError|WorkerGroupError|ControllerError|PreemptionError)\b",
    r"^(?:torch\.distributed\.)?Dist\w*Error\b",
    r"^\w*(?:Connection\w*Error|BrokenPipeError|EOFError|TimeoutError|KeyboardInterrupt|SystemExit)\b",
    r"gloo|NCCL|CUDA error|CUBLAS_|cuDNN|Connection (?:closed|reset|refused)|[Tt]imed out|Broken pipe",
)
"""Exceptions that follow from a fault of a machine or peer. Any other one is the script's own doing, so an
older line of the log about such a fault does not explain it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Hits when a piece of evidence from one of `sources` matches one of `patterns`.

    Sources are tried in the order given, so the exception may be preferred to the log. An empty tuple of
    patterns hits whenever there is evidence of a source.
    """

    name: str
    failure_class: FailureClass
    sources: tuple[str, ...]
    patterns: tuple[str, ...]
    message: str
    confidence: float
    owner: str = "supervisor"
    since: str = "2026-11-30"

    @property
    def pattern(self) -> str:
        return "|".join(f"(?:{p})" for p in self.patterns)


RULES: tuple[Rule, ...] = (
    # --- Ray about the job: texts and fields of the Jobs API ---
    Rule(
        "NodePreempted",
        F.PREEMPTED,
        (
            "job",
            "exception",
            "log",
        ),
        (
            r"node was preempted",
            r"Training was interrupted by node preemption",
            r"Terminated due to preemption",
            r"PreemptionError",
        ),
        "The node was drained because it is about to go.",
        0.95,
    ),
    Rule(
        "RuntimeEnvironment",
        F.BAD_ENVIRONMENT,
        (
            "job",
            "exception",
        ),
        (
            r"RUNTIME_ENV_SETUP_FAILURE",
            r"RuntimeEnvSetupError",
        ),
        "Ray could not set up the job's environment.",
        0.95,
    ),
    Rule(
        "JobStartTimeout",
        F.CAPACITY_MISSING,
        ("job",),
        (
            r"JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
            r"ACTOR_UNSCHEDULABLE",
        ),
        "No node with the asked resources came in time.",
        0.8,
    ),
    Rule(
        "MemoryMonitorTookSupervisor",
        F.OUT_OF_MEMORY_HOST,
        ("job",),
        (r"JOB_SUPERVISOR_ACTOR_(?:UNKNOWN_FAILURE|DIED)(?s:.*)low on memory",),
        "Ray's memory monitor ended the job's supervisor because the node ran low on memory.",
        0.9,
    ),
    Rule(
        "DriverNodeDied",
        F.DRIVER_LOST,
        ("job",),
        (
            r"JOB_SUPERVISOR_ACTOR_DIED(?s:.*)(?:node has died|node was terminated)",
            r"JOB_SUPERVISOR_ACTOR_DIED(?s:.*)(?:dead or unavailable|missed too many heartbeats)",
        ),
        "The node that ran the driver is gone.",
        0.95,
    ),
    Rule(
        "JobSupervisorDied",
        F.DRIVER_LOST,
        ("job",),
        (r"JOB_SUPERVISOR_ACTOR_(?:DIED|UNKNOWN_FAILURE|START_FAILURE)",),
        "Ray's supervisor of the job died, and the driver with it.",
        0.85,
    ),
    Rule(
        "UnknownToHead",
        F.HEAD_LOST,
        ("api",),
        (r"does not know the job",),
        "The head does not know the job: it lost its state.",
        0.9,
    ),
    Rule(
        "ClusterGone",
        F.HEAD_LOST,
        ("api",),
        (r"processes are gone",),
        "All processes of the cluster are gone.",
        1.0,
    ),
    # --- roots in the log: a fault of machine or platform that everything after it follows from ---
    Rule(
        "AttemptSuperseded",
        F.HEAD_LOST,
        ("log",),
        (r"attempt \d+ of run \S+ was already started by another process",),
        "A head that had forgotten this attempt started it a second time; the second start left at once.",
        0.9,
    ),
    Rule(
        "GcsLost",
        F.HEAD_LOST,
        (
            "log",
            "exception",
        ),
        (
            r"Failed to connect to GCS within",
            r"GCS may have been killed",
            r"lost connection to (?:the )?GCS",
        ),
        "The driver lost the head.",
        0.9,
    ),
    Rule(
        "EccError",
        F.HARDWARE_FAULT,
        (
            "log",
            "exception",
        ),
        (
            r"uncorrectable ECC error",
            r"NVRM: Xid .*\b(?:48|63|64|79|94|95)\b",
        ),
        "The GPU reports a fault of its own; this is a matter of the machine.",
        0.95,
    ),
    Rule(
        "DeviceMemory",
        F.OUT_OF_MEMORY_DEVICE,
        (
            "exception",
            "log",
        ),
        (
            r"CUDA out of memory",
            r"HIP out of memory",
            r"CUDA error: out of memory",
            r"CUBLAS_STATUS_ALLOC_FAILED",
        ),
        "The GPU's memory is too small for the model and batch.",
        0.95,
    ),
    Rule(
        "HostMemory",
        F.OUT_OF_MEMORY_HOST,
        (
            "exception",
            "log",
        ),
        (
            r"killed due to the node running low on memory",
            r"NODE_OUT_OF_MEMORY",
            r"OOMKilled",
            r"Cannot allocate memory",
        ),
        "The node ran out of memory.",
        0.9,
    ),
    Rule(
        "CheckpointUnreadable",
        F.CHECKPOINT_CORRUPT,
        ("exception",),
        (
            r"CheckpointCorrupt",
            r"PytorchStreamReader failed",
            r"invalid header or archive is corrupted",
            r"CheckpointManagerInitializationError",
        ),
        "A checkpoint cannot be read.",
        0.85,
    ),
    Rule(
        "CollectiveTimeout",
        F.COLLECTIVE_TIMEOUT,
        (
            "log",
            "exception",
        ),
        (
            r"Watchdog caught collective operation timeout",
            r"ProcessGroupNCCL's watchdog got stuck",
            r"Timed out waiting \d+ms for (?:send|recv) operation",
        ),
        "Ranks waited in vain for another one in a collective.",
        0.8,
    ),
    Rule(
        "StorageUnavailable",
        F.STORAGE_TRANSIENT,
        ("exception",),
        (
            r"SlowDown",
            r"ServiceUnavailable",
            r"503 Service",
            r"Stale file handle",
            r"Errno 116",
            r"RequestTimeout",
            r"InternalError.*S3",
        ),
        "The storage did not answer properly.",
        0.7,
    ),
    # --- the last exception of the driver: it says what ended the program ---
    Rule(
        "MissingModule",
        F.BAD_ENVIRONMENT,
        ("exception",),
        (r"(?:ModuleNotFoundError|ImportError)\b",),
        "A module that the script imports is not there.",
        0.95,
    ),
    Rule(
        "NodeDied",
        F.NODE_LOST,
        ("exception",),
        (
            r"node it was running on is dead or unavailable",
            r"its node has died",
            r"missed too many heartbeats",
            r"NodeDiedError",
            r"LocalRayletDiedError",
            r"local raylet died",
        ),
        "A node went away under the training.",
        0.9,
    ),
    Rule(
        "ActorNotMade",
        F.USER_ERROR,
        ("exception",),
        # unless what it raised there is in turn the death of another process
        (
            r"error raised in its creation task(?!(?s:.*)"
            r"(?:died unexpectedly|exit type: SYSTEM_ERROR|WorkerCrashedError|ActorUnavailableError))",
        ),
        "The script raised an exception in the constructor of an actor.",
        0.9,
    ),
    Rule(
        "WorkerDied",
        F.WORKER_CRASH,
        ("exception",),
        (
            r"worker died unexpectedly",
            r"Worker exit type: SYSTEM_ERROR",
            r"WorkerCrashedError",
            r"ActorDiedError",
            r"ActorUnavailableError",
            r"A worker health check failed",
        ),
        "A worker process ended without an exception of its own; Ray's text cannot say why.",
        0.7,
    ),
    Rule(
        "InputMissing",
        F.BAD_INPUT,
        ("exception",),
        (r"(?:FileNotFoundError|IsADirectoryError|NotADirectoryError)\b",),
        "A file that the script needs is not there.",
        0.8,
    ),
    Rule(
        "OwnException",
        F.USER_ERROR,
        ("exception",),
        (r"\S",),
        "The script raised an exception.",
        0.9,
    ),
    # --- exit codes, last: a number alone decides little ---
    Rule(
        "CommandNotFound",
        F.BAD_ENVIRONMENT,
        ("exit",),
        (r"^12[67]$",),
        "The command does not exist or cannot be executed.",
        0.9,
    ),
    Rule(
        "ScriptNotFound",
        F.BAD_INPUT,
        ("log",),
        (r"can't open file '[^']*': \[Errno 2\]",),
        "The script file does not exist.",
        0.95,
    ),
    Rule(
        "NativeCrash",
        F.WORKER_CRASH,
        ("exit",),
        (r"^(?:134|135|136|139|-6|-7|-8|-11)$",),
        "The driver crashed in native code.",
        0.6,
    ),
    Rule(
        "Killed",
        F.UNKNOWN,
        ("exit",),
        (r"^(?:137|-9|143|-15|247)$",),
        "The driver was ended by a signal from outside; the exit code alone cannot say by whom.",
        0.3,
    ),
    Rule(
        "OwnExitCode",
        F.USER_ERROR,
        ("exit",),
        (r"^(?!0$)\d+$",),
        "The script ended itself with a code other than 0.",
        0.8,
    ),
    Rule(
        "StoppedInRay",
        F.CANCELLED,
        ("job",),
        (r"^STOPPED\b",),
        "Somebody stopped the job in Ray.",
        0.8,
    ),
    Rule(
        "NothingKnown",
        F.UNKNOWN,
        (
            "job",
            "api",
            "log",
            "exit",
        ),
        (),
        "No rule knows this ending.",
        0.1,
    ),
)
