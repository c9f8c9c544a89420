"""One real text for each rule, and the cases in which a louder text must not win."""

from __future__ import annotations

import pytest
from corpus import CASES
from steadyray.contract import Failure, FailureClass

from ops.policy.failure import classify, final_exception, gather_evidence
from ops.policy.failure_rules import RULES
from ops.policy.model import JobStatus, JobView

F = FailureClass
COMMAND = "JOB_ENTRYPOINT_COMMAND_ERROR"
DIED = "JOB_SUPERVISOR_ACTOR_DIED"
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'


def failed(error_type: str = COMMAND, code: int | None = 1, message: str = "") -> JobView:
    return JobView(JobStatus.FAILED, message, error_type, code)


ACTOR_DIED = (
    TRACE + "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    "\tclass_name: Rank\n\tactor_id: 01\n"
)
NODE_DIED = ACTOR_DIED + "The actor died because its node has died. Node Id: ab12\n"
PREEMPTED = ACTOR_DIED + "The actor died because the actor's node was preempted: spot reclaim\n"
RAY_OOM = (
    TRACE + "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.0.0.7) was 15.2GB / 16.0GB\n"
)
CUDA_OOM = (
    TRACE + "ray.exceptions.RayTaskError(OutOfMemoryError): ray::train() (pid=7, ip=10.0.0.7)\n"
    '  File "train.py", line 9, in train\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
USER_IN_TASK = (
    TRACE + "ray.exceptions.RayTaskError(ZeroDivisionError): ray::f() (pid=7, ip=10.0.0.7)\n"
    '  File "train.py", line 9, in f\n'
    "ZeroDivisionError: division by zero\n"
)
NOT_MADE = (
    TRACE + "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
    "\x1b[36mray::Rank.__init__()\x1b[39m (pid=7, ip=10.0.0.7, actor_id=01, repr=<train.Rank object>)\n"
    '  File "train.py", line 5, in __init__\n'
    "ValueError: hidden must be even\n"
)
GCS = (
    "[2026-11-30 10:00:00,000 E 5 5] gcs_rpc_client.h:179: Failed to connect to GCS within 60 seconds. "
    "GCS may have been killed. It's either GCS is terminated by `ray stop` or is killed unexpectedly.\n"
)
WATCHDOGS = "world_size=8\n" + "".join(
    f"[rank {r}]: [E ProcessGroupNCCL.cpp:475] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600031 ms\n"
    for r in range(8)
    if r != 5
)
ECC = TRACE + "RuntimeError: CUDA error: uncorrectable ECC error encountered\nnode=gpu-17\n"

SAMPLES: list[tuple[str, JobView | None, str, FailureClass]] = [
    (
        "AttemptSuperseded",
        failed(code=75, message="... exit code 75"),
        "steadyray: attempt 1 of run x was already started by another process; this one leaves\n",
        F.HEAD_LOST,
    ),
    ("NodePreempted", failed(), PREEMPTED, F.PREEMPTED),
    (
        "RuntimeEnvironment",
        failed("RUNTIME_ENV_SETUP_FAILURE", None, "runtime_env setup failed: Failed to set up"),
        "",
        F.BAD_ENVIRONMENT,
    ),
    (
        "JobStartTimeout",
        failed(
            "JOB_SUPERVISOR_ACTOR_START_TIMEOUT", None, "Job supervisor actor failed to start within 900 s"
        ),
        "",
        F.CAPACITY_MISSING,
    ),
    (
        "MemoryMonitorTookSupervisor",
        failed(
            "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
            None,
            "Unexpected error occurred: 1 worker(s) were killed due to the node running low on memory.",
        ),
        "",
        F.OUT_OF_MEMORY_HOST,
    ),
    (
        "DriverNodeDied",
        failed(DIED, None, "Job supervisor actor died: The actor died because its node has died. Node Id: 1"),
        "step 5\n",
        F.DRIVER_LOST,
    ),
    (
        "JobSupervisorDied",
        failed(DIED, None, "Job supervisor actor died: ... Worker exit type: SYSTEM_ERROR"),
        "step 5\n",
        F.DRIVER_LOST,
    ),
    ("GcsLost", failed(), "step 5\n" + GCS, F.HEAD_LOST),
    ("EccError", failed(), ECC, F.HARDWARE_FAULT),
    ("DeviceMemory", failed(), CUDA_OOM, F.OUT_OF_MEMORY_DEVICE),
    ("HostMemory", failed(), RAY_OOM, F.OUT_OF_MEMORY_HOST),
    (
        "CheckpointUnreadable",
        failed(),
        TRACE
        + "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n",
        F.CHECKPOINT_CORRUPT,
    ),
    ("CollectiveTimeout", failed(code=134), WATCHDOGS, F.COLLECTIVE_TIMEOUT),
    (
        "StorageUnavailable",
        failed(),
        TRACE + "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling PutObject\n",
        F.STORAGE_TRANSIENT,
    ),
    (
        "MissingModule",
        failed(),
        TRACE + "ModuleNotFoundError: No module named 'torchvision'\n",
        F.BAD_ENVIRONMENT,
    ),
    ("NodeDied", failed(), NODE_DIED, F.NODE_LOST),
    ("ActorNotMade", failed(), NOT_MADE, F.USER_ERROR),
    ("WorkerDied", failed(), ACTOR_DIED, F.WORKER_CRASH),
    (
        "InputMissing",
        failed(),
        TRACE + "FileNotFoundError: [Errno 2] No such file: 'data.csv'\n",
        F.BAD_INPUT,
    ),
    ("OwnException", failed(), USER_IN_TASK, F.USER_ERROR),
    ("CommandNotFound", failed(code=127), "steadyray: nosuch: not found\n", F.BAD_ENVIRONMENT),
    (
        "ScriptNotFound",
        failed(code=2),
        "python: can't open file 'x.py': [Errno 2] No such file\n",
        F.BAD_INPUT,
    ),
    ("NativeCrash", failed(code=139), "step 5\n", F.WORKER_CRASH),
    ("Killed", failed(code=-9), "step 5\n", F.UNKNOWN),
    ("OwnExitCode", failed(code=3), "step 5\n", F.USER_ERROR),
    ("StoppedInRay", JobView(JobStatus.STOPPED, "Job was intentionally stopped."), "step 5\n", F.CANCELLED),
    ("NothingKnown", failed("", None), "", F.UNKNOWN),
]


@pytest.mark.parametrize(("rule", "job", "log", "expected"), SAMPLES, ids=[s[0] for s in SAMPLES])
def test_a_real_text_of_each_rule_gets_its_class(
    rule: str, job: JobView | None, log: str, expected: FailureClass
) -> None:
    verdict = classify(gather_evidence(job=job, log=log, hint=None))
    assert (verdict.rule, verdict.failure_class) == (rule, expected)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("the head answers and does not know the job", "UnknownToHead"),
        ("the cluster's processes are gone", "ClusterGone"),
    ],
)
def test_what_the_interface_said_means_that_the_head_is_lost(said: str, rule: str) -> None:
    verdict = classify(gather_evidence(job=None, log="step 5\n", hint=None, api=said))
    assert (verdict.rule, verdict.failure_class) == (rule, F.HEAD_LOST)


def test_each_rule_has_a_sample_an_owner_and_a_date() -> None:
    shown = {s[0] for s in SAMPLES} | {"UnknownToHead", "ClusterGone"} | {case.verdict.rule for case in CASES}
    assert {r.name for r in RULES} - shown == set()
    assert len({r.name for r in RULES}) == len(RULES)
    assert all(r.owner and r.since.startswith("20") and 0 <= r.confidence <= 1 for r in RULES)


def test_the_trainers_hint_outranks_whatever_the_log_says() -> None:
    hint = Failure("CheckpointCorrupt", "no good checkpoint is left", rank=0)
    verdict = classify(gather_evidence(job=failed(), log=USER_IN_TASK, hint=hint))
    assert (verdict.failure_class, verdict.rule) == (F.CHECKPOINT_CORRUPT, "TrainerHint")


def test_a_hint_of_a_newer_library_with_an_unknown_class_is_passed_over() -> None:
    verdict = classify(gather_evidence(job=failed(), log=USER_IN_TASK, hint=Failure("Sunspots", "glare")))
    assert verdict.failure_class is F.USER_ERROR


def test_a_job_that_we_stopped_for_a_hang_is_a_hang_and_not_cancelled() -> None:
    job = JobView(JobStatus.STOPPED, "Job was intentionally stopped.")
    assert (
        classify(gather_evidence(job=job, log="", hint=None, incident="Hang: no step")).failure_class
        is F.HANG
    )


def test_the_head_lost_with_exit_code_one_is_not_a_user_error() -> None:
    """B28: the driver ends with exit code 1 and no traceback; only a native line tells."""
    assert classify(gather_evidence(job=failed(code=1), log=GCS, hint=None)).failure_class is F.HEAD_LOST


def test_two_out_of_memory_errors_of_the_same_name_are_two_classes() -> None:
    """B16: RayTaskError(OutOfMemoryError) is CUDA's or Ray's; the message tells, not the name."""
    host = classify(gather_evidence(job=failed(), log=RAY_OOM, hint=None))
    device = classify(gather_evidence(job=failed(), log=CUDA_OOM, hint=None))
    assert (host.failure_class, device.failure_class) == (F.OUT_OF_MEMORY_HOST, F.OUT_OF_MEMORY_DEVICE)
    assert host.message != device.message


def test_a_drained_node_is_preempted_and_a_dead_one_is_lost() -> None:
    """B15."""
    drained = classify(gather_evidence(job=failed(), log=PREEMPTED, hint=None))
    dead = classify(gather_evidence(job=failed(), log=NODE_DIED, hint=None))
    assert (drained.failure_class, dead.failure_class) == (F.PREEMPTED, F.NODE_LOST)


def test_a_list_of_possible_causes_is_not_taken_for_out_of_memory() -> None:
    """B17: Ray's text names the OOM killer among its guesses."""
    log = ACTOR_DIED + (
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection "
        "error code 2. End of file. Some common causes include: (1) the process was killed by the OOM "
        "killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed\n"
    )
    assert classify(gather_evidence(job=failed(), log=log, hint=None)).failure_class is F.WORKER_CRASH


def test_the_rank_that_did_not_complain_is_blamed_for_a_collective_time_out() -> None:
    """B19: seven of eight ranks print the time-out; the eighth is the cause."""
    verdict = classify(gather_evidence(job=failed(code=134), log=WATCHDOGS, hint=None))
    assert (verdict.failure_class, verdict.culprit.rank) == (F.COLLECTIVE_TIMEOUT, 5)


def test_an_ecc_error_is_the_machines_fault_and_names_it() -> None:
    """B20: not out of memory, not the user."""
    verdict = classify(gather_evidence(job=failed(), log=ECC, hint=None))
    assert (verdict.failure_class, verdict.culprit.host) == (F.HARDWARE_FAULT, "gpu-17")


@pytest.mark.parametrize("code", [137, -9, 143, -15])
def test_an_exit_code_of_a_signal_alone_decides_nothing(code: int) -> None:
    assert (
        classify(gather_evidence(job=failed(code=code), log="step\n", hint=None)).failure_class is F.UNKNOWN
    )


def test_a_traceback_that_was_handled_long_before_the_end_is_not_the_cause() -> None:
    log = TRACE + "ValueError: handled\n" + "step\n" * 500
    assert final_exception(log) == ""


def test_the_last_of_chained_exceptions_counts() -> None:
    log = TRACE + "KeyError: 'a'\n\nDuring handling of the above exception, another one:\n\n" + TRACE
    assert final_exception(log + "ValueError: b\n").startswith("ValueError: b")


@pytest.mark.parametrize("code", [137, -9, 143, -15])
@pytest.mark.parametrize("between", [0, 3, 300])
def test_a_handled_traceback_before_a_signal_is_not_the_scripts_own_end(code: int, between: int) -> None:
    log = "step 1\n" + TRACE + "ValueError: handled\n" + "".join(f"step {i}\n" for i in range(between))
    verdict = classify(gather_evidence(job=failed(code=code), log=log, hint=None))
    assert (verdict.rule, verdict.failure_class) == ("Killed", F.UNKNOWN)


WORK = [
    "step 7 loss 0.3",
    "2026-11-30 10:00:01,123 INFO saved",
    "INFO:root:saved",
    "Epoch 3: 10%",
    "done 4 of 9",
]


@pytest.mark.parametrize("line", WORK)
def test_a_traceback_that_work_follows_was_handled(line: str) -> None:
    assert final_exception("done 3 of 9\n" + TRACE + "ValueError: handled\n" + line + "\n") == ""


ENDINGS = [
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA`\n",
    "[rank0]:[W1130 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was not called\n" * 2,
    "(Rank pid=7) step 9\n(Rank pid=7) step 10\n",
    "\tsize mismatch\n" * 300,
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_processes_write_as_they_end_does_not_hide_their_exception(ending: str) -> None:
    log = "step 1\n" + TRACE + "RuntimeError: no\n" + ending
    assert final_exception(log).startswith("RuntimeError: no")


def test_only_the_last_sixty_lines_hold_an_end() -> None:
    ending = [f"{word} {other}" for word in "abcdefgh" for other in "abcdefgh"]
    log = TRACE + "ValueError: b\n"
    assert final_exception(log + "\n".join(ending[:59]))
    assert final_exception(log + "\n".join(ending[:60])) == ""


FAULTS = {
    "preempted": ("The actor died because the actor's node was preempted: spot\n", F.PREEMPTED),
    "drained": ("PreemptionError: Training was interrupted by node preemption\n", F.PREEMPTED),
    "device": (
        "caught: CUDA out of memory. Tried to allocate 2 GiB; halving the batch\n",
        F.OUT_OF_MEMORY_DEVICE,
    ),
    "host": ("(raylet) 1 worker was killed due to the node running low on memory\n", F.OUT_OF_MEMORY_HOST),
    "ecc": ("node=gpu-17: uncorrectable ECC error\n", F.HARDWARE_FAULT),
    "gcs": ("lost connection to GCS, tries again\n", F.HEAD_LOST),
    "watchdog": ("[Rank 3] Watchdog caught collective operation timeout\n", F.COLLECTIVE_TIMEOUT),
}
OWN = [
    "ValueError: bad label",
    "ModuleNotFoundError: No module named 'x'",
    NOT_MADE.removeprefix(TRACE),
    USER_IN_TASK.removeprefix(TRACE),
]
CONSEQUENCES = [
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:1",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp",
    "ray.exceptions.ActorUnavailableError: The actor is temporarily unavailable",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "ray.exceptions.RayTaskError(RuntimeError): ray::train() (pid=7)\n"
    '  File "train.py", line 9, in train\nRuntimeError: [gloo] Connection closed by peer',
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("own", OWN)
def test_an_own_exception_wins_over_a_fault_that_the_script_got_over(fault: str, own: str) -> None:
    log = "step 1\n" + FAULTS[fault][0] + "step 2\n" + TRACE + own + "\n"
    verdict = classify(gather_evidence(job=failed(), log=log, hint=None))
    assert verdict.failure_class in {F.USER_ERROR, F.BAD_ENVIRONMENT}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("after", CONSEQUENCES)
def test_a_fault_wins_over_the_exceptions_that_follow_from_it(fault: str, after: str) -> None:
    line, expected = FAULTS[fault]
    verdict = classify(gather_evidence(job=failed(), log="step 1\n" + line + TRACE + after + "\n", hint=None))
    assert verdict.failure_class is expected


def test_a_fault_in_the_chain_of_the_last_exception_is_its_cause() -> None:
    log = CUDA_OOM + "\nThe above exception was the direct cause of the following exception:\n\n" + TRACE
    verdict = classify(gather_evidence(job=failed(), log=log + "RuntimeError: rank 3 failed\n", hint=None))
    assert verdict.failure_class is F.OUT_OF_MEMORY_DEVICE


def test_an_actor_whose_constructor_lost_another_process_is_a_crash() -> None:
    inner = NOT_MADE.replace(
        "ValueError: hidden must be even", "ray.exceptions.ActorDiedError: The actor died unexpectedly"
    )
    assert classify(gather_evidence(job=failed(), log=inner, hint=None)).failure_class is F.WORKER_CRASH


def test_no_evidence_is_unknown_and_not_a_user_error() -> None:
    assert classify(()).failure_class is F.UNKNOWN
