"""Root before cascade: of all that a log tells, the fault that the others follow from, and who had it."""

from __future__ import annotations

import pytest
from steadyray.contract import FailureClass

from ops.policy.failure import classify, gather_evidence
from ops.policy.log_lines import parse, stamp
from ops.policy.model import Culprit, JobStatus, JobView, Verdict

F = FailureClass
TRACE = "Traceback (most recent call last):\n"
STEPS = "".join(f"step {i} loss 0.{i}\n" for i in range(10, 20))
SEGFAULT = (
    "E1130 10:00:01.000000 9 api.py:880] failed (exitcode: -11) local_rank: 3 (pid: 7) of binary: python\n"
)
WATCHDOG = (
    "[rank1]:[E1130 10:10:01.000000 x.cpp:1] [Rank 1] Watchdog caught collective operation timeout: W\n"
)
XID = "Nov 30 10:00:00 gpu-7 kernel: NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=python, text\n"
PLACED = "(TrainController pid=1, ip=10.0.0.2) - (ip=10.0.4.{0}, pid=2{0}) world_rank={0}, local_rank=0\n"


def _verdict(log: str) -> Verdict:
    return classify(gather_evidence(job=None, log=log, hint=None))


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [(SEGFAULT, WATCHDOG, F.WORKER_CRASH), (WATCHDOG, SEGFAULT, F.COLLECTIVE_TIMEOUT)],
    ids=["crash first", "time-out first"],
)
def test_of_a_crash_and_a_time_out_the_earlier_one_is_the_root(
    first: str, second: str, kind: FailureClass
) -> None:
    verdict = _verdict(STEPS + first + second)
    assert (verdict.failure_class, verdict.evidence[0].line) == (kind, 11)


def test_a_fault_after_which_work_went_on_is_not_the_cause_of_the_end() -> None:
    assert _verdict("step 1\n" + SEGFAULT + STEPS + "Killed\n").failure_class is F.UNKNOWN


def test_a_device_that_fell_off_the_bus_stays_the_cause_whatever_was_printed_after_it() -> None:
    verdict = _verdict("step 1\n" + XID.format(79) + STEPS + "Killed\n")
    assert (verdict.failure_class, verdict.culprit) == (F.HARDWARE_FAULT, Culprit(host="gpu-7"))


@pytest.mark.parametrize(("hosts", "blamed"), [(("gpu-1",), "gpu-1"), (("gpu-1", "gpu-2"), "")])
def test_a_machine_is_blamed_only_if_the_log_speaks_of_no_other(hosts: tuple[str, ...], blamed: str) -> None:
    log = "".join(f"starts on host={host}\n" for host in hosts)
    log += TRACE + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    assert _verdict(log).culprit == Culprit(host=blamed)


@pytest.mark.parametrize("number", [63, 92, 93, 121])
def test_an_xid_that_is_information_only_is_no_fault(number: int) -> None:
    assert _verdict(XID.format(number)).failure_class is F.UNKNOWN


def test_numbers_elsewhere_in_an_xid_line_are_not_taken_for_its_code() -> None:
    line = XID.format(43).replace("pid=1", "pid=79").replace("3b:00", "79:00")
    assert _verdict(line).failure_class is F.WORKER_CRASH


def test_the_process_that_raised_first_gets_its_rank_from_what_ray_train_said_about_it() -> None:
    log = "".join(PLACED.format(rank) for rank in (1, 2, 3))
    log += f"(RayTrainWorker pid=23, ip=10.0.4.3) {TRACE}(RayTrainWorker pid=23, ip=10.0.4.3) KeyError: 'x'\n"
    log += f"(RayTrainWorker pid=21, ip=10.0.4.1) {TRACE}(RayTrainWorker pid=21, ip=10.0.4.1) ValueError: y\n"
    verdict = _verdict(log)
    assert (verdict.failure_class, verdict.culprit) == (F.USER_ERROR, Culprit(rank=3, node="10.0.4.3"))
    assert verdict.message.endswith("KeyError: 'x'")


def test_what_other_ranks_saw_does_not_explain_an_own_exception() -> None:
    log = f"{STEPS}[rank2]: {TRACE}[rank2]: IndexError: z\n{WATCHDOG}{SEGFAULT}"
    verdict = _verdict(log)
    assert (verdict.failure_class, verdict.culprit.rank) == (F.USER_ERROR, 2)


@pytest.mark.parametrize(
    "exception",
    [
        "ray.exceptions.OwnerDiedError: Failed to retrieve object 16310a0f",
        "botocore.exceptions.HTTPClientError: An HTTP Client raised an unhandled exception",
        "google.api_core.exceptions.Unknown: None Stream removed",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ",
    ],
)
def test_an_exception_of_a_machine_peer_or_service_is_never_the_users(exception: str) -> None:
    assert _verdict(STEPS + TRACE + exception + "\n").failure_class not in {
        F.USER_ERROR,
        F.BAD_INPUT,
        F.BAD_ENVIRONMENT,
    }


def test_a_warning_of_the_environment_far_from_the_end_stops_no_run() -> None:
    log = "OSError: [Errno 24] Too many open files\n" + "other text\n" * 80 + "Killed\n"
    assert _verdict(log).failure_class is F.UNKNOWN


PREFIXED = [
    ("\x1b[36m(Rank pid=7, ip=10.0.0.7)\x1b[0m [rank3]: text", 3, "10.0.0.7", ""),
    ("[default1]:[rank9]: text", 9, "", ""),
    ("2026-06-02T16:13:44.884Z: [1,12]<stdout>:text", 12, "", ""),
    ("[pod/worker-a/main] 2026-06-02T16:13:44.884Z text", None, "worker-a", ""),
    ("Nov 30 10:00:00 gpu-7 kernel: text", None, "", "gpu-7"),
    ("trainer-1  | text", None, "", ""),
    (" 1%|#| 1/9\r 2%|##| 2/9\rtext\r", None, "", ""),
]


@pytest.mark.parametrize(("raw", "rank", "node", "host"), PREFIXED, ids=[p[0] for p in PREFIXED])
def test_a_line_is_read_without_what_stands_before_it(
    raw: str, rank: int | None, node: str, host: str
) -> None:
    line = parse(raw, 1)
    assert line.text.endswith("text")
    assert not line.text.startswith(("[", "(", "2", "N", "t ", " "))
    assert (line.rank, line.node, line.host) == (rank, node, host)


def test_a_verdict_says_when_its_evidence_was_written() -> None:
    assert _verdict(XID.format(79)).evidence[0].stamp == "Nov 30 10:00:00"
    assert stamp("2026-11-30 10:00:01,118 INFO x") == "2026-11-30 10:00:01,118"
    assert stamp("no time") == ""


@pytest.mark.parametrize("code", [134, -6])
def test_a_driver_that_a_watchdog_aborted_waited_for_the_rank_that_raised(code: int) -> None:
    log = f"{STEPS}(Rank pid=7, ip=10.0.0.7) {TRACE}(Rank pid=7, ip=10.0.0.7) KeyError: 'x'\n{WATCHDOG}"
    job = JobView(JobStatus.FAILED, "", "JOB_ENTRYPOINT_COMMAND_ERROR", code)
    verdict = classify(gather_evidence(job=job, log=log, hint=None))
    assert (verdict.failure_class, verdict.culprit.node) == (F.USER_ERROR, "10.0.0.7")
