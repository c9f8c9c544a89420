"""Messages that people read: the last words of a program, and nothing that only confuses."""

from __future__ import annotations

from ops.explain import new_lines
from ops.policy.failure import classify, gather_evidence
from ops.policy.model import JobStatus, JobView


def test_a_program_that_ends_itself_is_quoted_with_its_last_line() -> None:
    job = JobView(JobStatus.FAILED, "", "JOB_ENTRYPOINT_COMMAND_ERROR", 2)
    log = "usage: train.py\ntrain.py: error: unrecognized arguments: --ful\n\n"
    message = classify(gather_evidence(job=job, log=log, hint=None)).message
    assert message.endswith("Exit code 2; its last line: train.py: error: unrecognized arguments: --ful.")


def test_a_program_that_was_killed_is_not_quoted_for_it_did_not_know() -> None:
    job = JobView(JobStatus.FAILED, "", "JOB_ENTRYPOINT_COMMAND_ERROR", -9)
    assert "step 7" not in classify(gather_evidence(job=job, log="step 7\n", hint=None)).message


def test_a_followed_log_shows_each_line_once_though_tails_overlap() -> None:
    assert new_lines(["a", "b", "c"], ["b", "c", "d"]) == ["d"]
    assert new_lines(["a"], ["x", "y"]) == ["x", "y"]
    assert new_lines(["a", "b"], ["a", "b"]) == []
