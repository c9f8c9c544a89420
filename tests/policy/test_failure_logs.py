"""Every log of the corpus gets its class, its culprit and its actions."""

from __future__ import annotations

import io

import pytest
from corpus import CASES, Case
from steadyray.contract import FailureClass

from ops import explain_log
from ops.policy.log_lines import TELLING, parse
from ops.policy.treatments import JobAction

F = FailureClass
LEAST_RIGHT = 0.97
OF_THE_USER = frozenset({F.USER_ERROR, F.BAD_INPUT, F.BAD_ENVIRONMENT})
OF_NOBODY = frozenset({F.CANCELLED, F.DEADLINE_EXCEEDED, F.UNKNOWN})
BY_NAME = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def test_the_corpus_has_at_least_a_hundred_and_fifty_logs_of_every_class() -> None:
    assert len(CASES) >= 150
    assert {case.failure_class for case in CASES} == set(F)


def test_nearly_every_log_gets_its_class_culprit_and_actions() -> None:
    wrong = [case.wrong for case in CASES if case.wrong]
    assert len(wrong) <= (1 - LEAST_RIGHT) * len(CASES), "\n".join(wrong)


@BY_NAME
def test_a_log_gets_its_class_culprit_and_actions(case: Case) -> None:
    assert case.wrong == ""


def test_no_error_of_a_user_is_retried() -> None:
    retried = [
        case.name
        for case in CASES
        if case.failure_class in OF_THE_USER and case.found["job_action"] != JobAction.STOP
    ]
    assert retried == []


def test_no_fault_of_the_infrastructure_is_taken_for_a_users_error() -> None:
    blamed = [
        case.name
        for case in CASES
        if case.failure_class not in OF_THE_USER | OF_NOBODY and case.verdict.failure_class in OF_THE_USER
    ]
    assert blamed == []


@BY_NAME
def test_a_verdict_shows_lines_of_the_log_with_their_numbers(case: Case) -> None:
    lines = case.log.split("\n")
    for fact in case.verdict.evidence:
        if fact.source in {"log", "exception"} and fact.line:
            shown = fact.text.splitlines()[0]
            near = "\n".join(parse(x, 0).text for x in lines[fact.line - 1 : fact.line + 40])
            assert shown in near


@BY_NAME
def test_a_log_is_judged_the_same_from_its_extract(case: Case) -> None:
    """`steadyray explain` keeps only some lines of a file, and is told no exit code."""
    if "exit" in case.expected:
        return
    padded = case.log.encode()
    story = explain_log.explain(io.BytesIO(padded), "x")
    assert (story["failure_class"], story["rule"]) == (case.expected["class"], case.verdict.rule)


@BY_NAME
def test_each_line_that_decides_is_one_that_a_search_of_a_large_file_keeps(case: Case) -> None:
    without_digits = str.maketrans("", "", "0123456789")
    for fact in case.verdict.evidence:
        if fact.source == "log" and fact.line:
            assert TELLING.search(fact.text.translate(without_digits))
