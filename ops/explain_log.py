"""Says why a job ended from nothing but a log: class, culprit, evidence, actions. For `steadyray explain`.

A log may be larger than memory. `ops.log_extract` keeps of it what may tell something, and
`ops.policy.failure` judges that extract as it judges the log of an attempt.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from ops.log_extract import Extract, read
from ops.policy.failure import classify, gather_evidence
from ops.policy.model import Evidence, Verdict
from ops.policy.redaction import redact
from ops.policy.treatments import TREATMENTS

CERTAIN, LIKELY = 0.9, 0.7


def explain(stream: BinaryIO, name: str) -> dict[str, Any]:
    """The whole answer about one log, redacted, with stable keys."""
    extract = read(stream)
    log, numbers = extract.text()
    verdict = classify(gather_evidence(job=None, log=redact(log), hint=None))
    return _story(verdict, name, extract, numbers)


def _story(verdict: Verdict, name: str, extract: Extract, numbers: list[int]) -> dict[str, Any]:
    treatment = TREATMENTS[verdict.failure_class]
    who = verdict.culprit
    return {
        "file": name,
        "lines": extract.lines,
        "bytes": extract.size,
        "failure_class": str(verdict.failure_class),
        "sure": sure(verdict.confidence),
        "confidence": verdict.confidence,
        "message": verdict.message if extract.size else "The log is empty; nothing is known.",
        "rule": verdict.rule,
        "culprit": {
            key: value
            for key, value in (("rank", who.rank), ("node", who.node), ("host", who.host))
            if value not in (None, "")
        },
        "evidence": [_line(fact, numbers) for fact in verdict.evidence if fact.text],
        "job_action": str(treatment.job_action),
        "node_action": str(verdict.node_action or treatment.node_action),
        "advice": treatment.advice,
    }


def _line(fact: Evidence, numbers: list[int]) -> dict[str, Any]:
    number = numbers[fact.line - 1] if 0 < fact.line <= len(numbers) else None
    return {"source": fact.source, "line": number, "time": fact.stamp, "text": fact.text}


def sure(confidence: float) -> str:
    if confidence >= CERTAIN:
        return "certain"
    return "likely" if confidence >= LIKELY else "a guess"


def as_text(story: dict[str, Any]) -> str:
    """For a terminal."""
    who = ", ".join(f"{key} {value}" for key, value in story["culprit"].items())
    lines = [
        f"{story['failure_class']}: {story['message']}",
        f"  sure:     {story['sure']} ({story['confidence']:.0%}), rule {story['rule']}",
        f"  culprit:  {who or 'the log names none'}",
    ]
    for fact in story["evidence"]:
        at = f"line {fact['line']}" if fact["line"] else "no line"
        lines.append(f"  evidence: {', '.join(x for x in (at, fact['time']) if x)}: {fact['text']}")
    lines += [
        f"  job:      {story['job_action']}",
        f"  node:     {story['node_action']}",
        f"  you:      {story['advice']}",
        f"  read:     {story['lines']} lines of {story['file']}",
    ]
    return "\n".join(lines)
