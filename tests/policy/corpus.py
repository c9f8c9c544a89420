"""Reads tests/failure_logs: one log a file, below a short YAML header that says what must be found in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from steadyray.contract import FailureClass

from ops.policy.failure import classify, gather_evidence
from ops.policy.model import JobStatus, JobView, Verdict
from ops.policy.treatments import TREATMENTS

FOLDER = Path(__file__).parent.parent / "failure_logs"
CULPRIT = ("rank", "node", "host")


@dataclass(frozen=True)
class Case:
    name: str
    log: str
    expected: dict[str, Any]

    @cached_property
    def verdict(self) -> Verdict:
        """As the supervisor would judge it; `exit` is what the driver left by, where a case needs it."""
        code = self.expected.get("exit")
        job = (
            JobView(JobStatus.FAILED, "", "JOB_ENTRYPOINT_COMMAND_ERROR", code) if code is not None else None
        )
        return classify(gather_evidence(job=job, log=self.log, hint=None))

    @property
    def failure_class(self) -> FailureClass:
        return FailureClass(self.expected["class"])

    @property
    def found(self) -> dict[str, Any]:
        """What was found for the keys that the header asks about."""
        who, treatment = self.verdict.culprit, TREATMENTS[self.verdict.failure_class]
        everything = {
            "class": str(self.verdict.failure_class),
            "job_action": str(treatment.job_action),
            "node_action": str(self.verdict.node_action or treatment.node_action),
        } | {key: getattr(who, key) for key in CULPRIT}
        return {key: everything[key] for key in self.expected if key != "exit"}

    @property
    def wrong(self) -> str:
        asked = {key: value for key, value in self.expected.items() if key != "exit"}
        return "" if self.found == asked else f"{self.name}: {self.found} by {self.verdict.rule}, not {asked}"


def read(path: Path) -> Case:
    _, header, log = path.read_text().split("---\n", 2)
    return Case(path.stem, log, yaml.safe_load(header))


CASES = [read(path) for path in sorted(FOLDER.glob("*.log"))]
