"""The rules by which an ended attempt gets its class: data, in order, first hit wins. Read by `failure`.

Root before cascade: what Ray says about the job, roots found in the log, what others saw of them, the last
exception, exit codes. The rows stand in `rules_cluster`, `rules_machine` and `rules_program`. To add one: a
row at the place that its certainty deserves, with owner and date, a literal part of its text in
`log_lines.TELLING`, and a case in tests/failure_logs. Texts are those of Ray 2.60 and PyTorch 2.15.
"""

from __future__ import annotations

from steadyray.contract import FailureClass

from ops.policy import rules_cluster as cluster
from ops.policy import rules_machine as machine
from ops.policy import rules_program as program
from ops.policy.rule import Rule

CASCADE = (
    r"^ray\.exceptions\.(?!RayTaskError|OutOfMemoryError|RuntimeEnv|.*raised in its creation task)",
    r"^(?:ray\.train\.\S*)?(?:TrainingFailedError|WorkerGroupError|ControllerError|PreemptionError)\b",
    r"^(?:ray\.train\.\S*)?(?:NCCLHangError|WorkerHealthCheck\w+Error|WorkerGroupStartup\w+Error)\b",
    r"^(?:torch\.distributed\.)?Dist\w*Error\b",
    r"^(?:torch\.distributed\.elastic\.\S+\.)?(?:ChildFailedError|SignalException|Rendezvous\w+Error)\b",
    r"^\w*(?:Connection\w*Error|BrokenPipeError|EOFError|TimeoutError|KeyboardInterrupt|SystemExit)\b",
    r"gloo|NCCL|CUDA error|CUBLAS_|cuDNN|Connection (?:closed|reset|refused)|[Tt]imed out|Broken pipe",
    r"^(?:\w+\.)*(?:botocore|boto3|urllib3|requests|aiohttp|httpx|grpc|redis|fsspec|s3fs|gcsfs|adlfs)\.",
    r"^(?:google\.(?:api_core|auth|cloud)|azure|kubernetes)\.",
    r"The actor died unexpectedly|died with <Signals|PytorchStreamWriter|monitoredBarrier",
    r"DataLoader worker \(pid|gaierror",
    r"Errno (?:5|28|107|116|121|122)\]",
)
"""Exceptions that follow from a fault of a machine or peer. Any other one is the script's own doing, so an
older line of the log about such a fault does not explain it."""

CONSEQUENCE = Rule(
    "ConsequenceOnly",
    FailureClass.UNKNOWN,
    ("exception",),
    CASCADE,
    "An exception that follows from a fault elsewhere; nothing says from which.",
    0.4,
    symptom=True,
)

RULES: tuple[Rule, ...] = (
    *cluster.JOB,
    *cluster.ENDED_ON_PURPOSE,
    *cluster.HEAD,
    *machine.HARDWARE,
    *machine.MEMORY,
    *program.ENVIRONMENT,
    *program.EXCEPTIONS[:1],
    *machine.STORAGE,
    *program.STATE,
    *machine.NETWORK_ROOTS,
    *cluster.NODES,
    *machine.SYMPTOMS,
    *program.RAY,
    *cluster.WAITING,
    *machine.PEER_GONE,
    *cluster.STOPPED,
    *program.EXCEPTIONS[1:],
    CONSEQUENCE,
    *program.LAST_EXCEPTION,
    *program.EXITS,
)
