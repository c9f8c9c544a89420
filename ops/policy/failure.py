"""From evidence to a failure class: an ordered table of rules, first hit wins.

What a person asked for and what the supervisor itself did come first, then the trainer's own hint, then
the table in `failure_rules`. Called by `ops.gather` when an attempt has ended.
"""

from __future__ import annotations

import re
from dataclasses import replace

from steadyray.contract import Failure, FailureClass

from ops.policy.failure_rules import RULES, Rule
from ops.policy.model import Culprit, Evidence, JobView, Verdict

F = FailureClass


HINT_CONFIDENCE = 0.98
INCIDENT_CONFIDENCE = 0.9


def classify(evidence: tuple[Evidence, ...]) -> Verdict:
    """The class of an ended attempt. The trainer's hint and what the supervisor itself did outrank rules."""
    stop = next((e for e in evidence if e.source == "stop"), None)
    if stop is None:
        for source, confidence in (("incident", INCIDENT_CONFIDENCE), ("hint", HINT_CONFIDENCE)):
            for fact in evidence:
                if fact.source == source and (found := _named(fact, confidence)):
                    return found
    for rule in RULES:
        if hit := _hit(rule, evidence):
            return _verdict(rule, hit, evidence)
    return Verdict(F.UNKNOWN, "NoEvidence", "Nothing is known about this ending.", 0.0)


def _named(fact: Evidence, confidence: float) -> Verdict | None:
    """Evidence that names its class itself: `Class: message`."""
    word, _, message = fact.text.partition(": ")
    if word not in set(F):
        return None
    rule = "TrainerHint" if fact.source == "hint" else "SupervisorActed"
    return Verdict(F(word), rule, message, confidence, (fact,))


def _hit(rule: Rule, evidence: tuple[Evidence, ...]) -> tuple[Evidence, re.Match[str]] | None:
    for source in rule.sources:
        for fact in evidence:
            if fact.source == source and (match := re.search(rule.pattern, fact.text)):
                return fact, match
    return None


def _verdict(rule: Rule, hit: tuple[Evidence, re.Match[str]], evidence: tuple[Evidence, ...]) -> Verdict:
    fact, match = hit
    message = rule.message
    if fact.source == "exception":
        message = f"{message} {_headline(fact.text)}"
    elif fact.source == "exit":
        spoke = "" if rule.failure_class is F.UNKNOWN else _last_words(evidence)
        message = f"{message} Exit code {fact.text}{spoke}."
    shown = replace(fact, text=_around(fact.text, match))
    return Verdict(
        rule.failure_class,
        rule.name,
        message,
        rule.confidence,
        (shown,),
        _culprit(rule.failure_class, evidence),
    )


def _last_words(evidence: tuple[Evidence, ...]) -> str:
    """What a program that ends itself says last is mostly why; usage errors are like that."""
    log = next((e.text for e in evidence if e.source == "log"), "")
    line = next((x for x in reversed(log.splitlines()) if x.strip()), "").strip()
    return f"; its last line: {line[:200].rstrip('.')}" if line else ""


def _around(text: str, match: re.Match[str]) -> str:
    """The line on which a match begins, with its end if the match runs on; enough for a person."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return text[start : end if end >= 0 else len(text)].strip()[:500]


def _headline(exception: str) -> str:
    return exception.strip().splitlines()[0][:300] if exception.strip() else ""


TRACEBACK = "Traceback (most recent call last)"
EXCEPTION_LINE = re.compile(r"^(?:[A-Za-z_][\w.]*)(?:\([\w.]+\))?(?::.*)?$")


def final_exception(log: str) -> str:
    """The exception, with its message, of the last traceback that ends the log; empty if there is none.

    A traceback in the middle of a log was handled or belongs to somebody else. Text may follow an
    exception's own lines (Ray writes its process ids), so what counts is that no new work follows: only
    the last 60 lines are considered.
    """
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if TRACEBACK in line and not line.startswith("(")]
    if not starts or len(lines) - starts[-1] > 400:
        return ""
    for i in range(starts[-1] + 1, len(lines)):
        line = lines[i]
        if line.startswith((" ", "\t")) or not line.strip():
            continue
        if EXCEPTION_LINE.match(line):
            return "\n".join(lines[i : i + 60])
    return ""


SILENT_RANK_LINE = re.compile(r"\[?[Rr]ank (\d+)\]?.*Watchdog caught collective operation timeout")
WORLD_SIZE = re.compile(r"world[_ ]size[=: ]+(\d+)", re.IGNORECASE)
NODE_NAME = re.compile(r"\b(?:node|host)[=: ]+['\"]?([A-Za-z0-9][\w.-]*\d[\w.-]*)", re.IGNORECASE)


def _culprit(kind: FailureClass, evidence: tuple[Evidence, ...]) -> Culprit:
    """Whom the log points at: in a collective time-out the rank that did *not* complain."""
    log = "\n".join(e.text for e in evidence if e.source == "log")
    if kind is F.COLLECTIVE_TIMEOUT:
        loud = {int(m) for m in SILENT_RANK_LINE.findall(log)}
        size = WORLD_SIZE.search(log)
        silent = sorted(set(range(int(size[1]) if size else max(loud, default=-1) + 1)) - loud)
        rank = silent[0] if len(silent) == 1 else None
        place = rank is not None and re.search(rf"[Rr]ank {rank}\b[^\n]*?(?:node|host)[=: ]+([\w.-]+)", log)
        return Culprit(rank=rank, host=place[1] if place else "")
    if kind is F.HARDWARE_FAULT and (name := NODE_NAME.search(log)):
        return Culprit(host=name[1])
    return Culprit()


def gather_evidence(
    *,
    job: JobView | None,
    log: str,
    hint: Failure | None,
    incident: str = "",
    stop: str = "",
    api: str = "",
    now: float = 0.0,
) -> tuple[Evidence, ...]:
    """All facts about an ended attempt, in one order. Texts must be redacted already."""
    facts: list[Evidence] = []
    if stop:
        facts.append(Evidence("stop", stop, now))
    if incident:
        facts.append(Evidence("incident", incident, now))
    if hint:
        facts.append(Evidence("hint", f"{hint.failure_class}: {hint.message}", hint.time or now))
    if api:
        facts.append(Evidence("api", api, now))
    if job:
        # Ray's message repeats up to 20,000 characters of log after its first line
        message = (
            job.message if job.error_type != "JOB_ENTRYPOINT_COMMAND_ERROR" else job.message.split("\n")[0]
        )
        facts.append(
            Evidence("job", f"{job.status} {job.error_type} exit_code={job.exit_code} {message}"[:4000], now)
        )
        log = log or job.message
        if job.exit_code is not None:
            facts.append(Evidence("exit", str(job.exit_code), now))
    if log:
        if (exception := final_exception(log)) and not (job and job.exit_code == 0):
            facts.append(Evidence("exception", exception, now))
        facts.append(Evidence("log", log, now))
    return tuple(facts)
