"""docs/states.md is what a person reads; the tables in the code are what happens. They must say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from steadyray.contract import FailureClass

from ops.policy.lifecycle import TRANSITIONS
from ops.policy.resubmission import TREATMENTS

RETRIED = {"none": "no", "free": "yes, never charged", "infrastructure": "yes, charged", "once": "once"}


@pytest.fixture
def rows(root: Path) -> list[list[str]]:
    lines = (root / "docs/states.md").read_text().splitlines()
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]


def test_the_document_has_each_legal_move_with_its_reason_and_no_other(rows: list[list[str]]) -> None:
    states = {state for move in TRANSITIONS for state in move}
    written = [row for row in rows if len(row) == 3 and row[0] in states]
    assert written == [[before, after, why] for (before, after), why in TRANSITIONS.items()]


def test_the_document_says_of_each_failure_class_what_the_supervisor_does(rows: list[list[str]]) -> None:
    written = {
        row[0]: (row[2], row[3].replace("`", ""))
        for row in rows
        if len(row) == 4 and row[0] in set(FailureClass)
    }
    decided = {kind: (RETRIED[t.budget], t.advice.replace("`", "")) for kind, t in TREATMENTS.items()}
    assert written == decided
    assert set(written) == set(FailureClass)


def test_the_document_says_what_each_failure_class_means_for_job_and_node(rows: list[list[str]]) -> None:
    written = [row for row in rows if len(row) == 3 and row[0] in set(FailureClass)]
    assert written == [[kind, t.job_action, t.node_action] for kind, t in TREATMENTS.items()]
