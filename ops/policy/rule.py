"""One rule of the failure table: what it looks for, where, and what it concludes. Data; read by `failure`."""

from __future__ import annotations

from dataclasses import dataclass

from steadyray.contract import FailureClass

from ops.policy.treatments import NodeAction


@dataclass(frozen=True, slots=True)
class Rule:
    """Hits when a piece of evidence from one of `sources` matches one of `patterns`.

    Sources are tried in the order given, so the exception may be preferred to the log. An empty tuple of
    patterns hits whenever there is evidence of a source. In a log each pattern is asked about single lines.
    """

    name: str
    failure_class: FailureClass
    sources: tuple[str, ...]
    patterns: tuple[str, ...]
    message: str
    confidence: float
    owner: str = "supervisor"
    since: str = "2026-11-30"
    symptom: bool = False
    """Seen by those who wait for the one at fault: never explains a script that raised by itself."""
    lasting: bool = False
    """Steps made after it prove nothing: a notice of minutes, a device that limps on."""
    contest: str = ""
    """Of the rules that share one and stand together, the one with the earliest line of the log wins."""
    node_action: NodeAction | None = None
    """Instead of what the class leads to."""

    @property
    def pattern(self) -> str:
        return "|".join(f"(?:{p})" for p in self.patterns)
