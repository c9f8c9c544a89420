"""From evidence to a failure class: an ordered table of rules, first hit wins.

What the supervisor itself did comes first, then the trainer's own hint, then
the table in `failure_rules`. Called by `ops.gather` when an attempt has ended.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from steadyray.contract import Failure, FailureClass

from ops.policy.failure_rules import CASCADE, RULES, Rule
from ops.policy.model import Culprit, Evidence, JobView, Verdict

F = FailureClass


HINT_CONFIDENCE = 0.98
INCIDENT_CONFIDENCE = 0.9


def classify(evidence: tuple[Evidence, ...]) -> Verdict:
    """The class of an ended attempt. The trainer's hint and what the supervisor itself did outrank rules."""
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
            end = _explained_until(rule, evidence) if source == "log" else None
            if fact.source != source or (match := re.search(rule.pattern, fact.text)) is None:
                continue
            if end is not None:  # the newest match counts: the fault may have come a second time
                match = list(re.finditer(rule.pattern, fact.text))[-1]
                if match.start() < end:
                    continue
            return fact, match
    return None


def _explained_until(rule: Rule, evidence: tuple[Evidence, ...]) -> int | None:
    """Where in the log the script's own last exception begins, if that one is no consequence of a fault.

    A fault that the script got over does not explain an exception of another kind that it raised later.
    """
    log = next((e.text for e in evidence if e.source == "log"), "")
    own = next((e.text for e in evidence if e.source == "exception"), "")
    if not rule.patterns or not own or re.search("|".join(CASCADE), _named_error(own), re.MULTILINE):
        return None
    return _chain_start(log, log.rfind(own.splitlines()[0]))


def _named_error(exception: str) -> str:
    """The exception's line; where a task of Ray raised it, that line stands below the remote traceback."""
    if not exception.startswith("ray.exceptions.RayTaskError"):
        return _headline(exception)
    return "\n".join(line for line in exception.splitlines() if _is_margin(line))


CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def _chain_start(log: str, exception: int) -> int:
    """Where the first traceback of a chain of exceptions begins; the chain is one story."""
    start = max(0, log.rfind(TRACEBACK, 0, max(0, exception)))
    while start and log[:start].rstrip().rpartition("\n")[2].startswith(CHAINED):
        earlier = log.rfind(TRACEBACK, 0, start)
        if earlier < 0:
            break
        start = earlier
    return start


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


RAYS_FIRST_LINE = "Running entrypoint for job "
"""Ray's own, at the top of each driver's log; where a script said nothing it is the last one too."""


def _last_words(evidence: tuple[Evidence, ...]) -> str:
    """What a program that ends itself says last is mostly why; usage errors are like that."""
    log = next((e.text for e in evidence if e.source == "log"), "")
    lines = (x.strip() for x in reversed(log.splitlines()))
    line = next((x for x in lines if x and not x.startswith(RAYS_FIRST_LINE)), "")
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


LAST_LINES = 60
WORK_LINE = re.compile(
    r"(?i)^\W*(?:(?:global[ _-]?)?step|epoch|iter(?:ation)?|batch|train(?:ing)?|eval\w*|loss)\b"
    r"|^\W*\d{4}-\d\d-\d\d[T ][\d:.,]+\S*\W+(?:\S+\W+)?(?:INFO|DEBUG)\b|^(?:INFO|DEBUG)\b"
)


def final_exception(log: str) -> str:
    """The exception, with its message, of the last traceback that ends the log; empty if there is none.

    A traceback in the middle of a log was handled or belongs to somebody else. Text may follow an
    exception's own lines (Ray writes its process ids), so what counts is that no new work follows: only
    the last 60 lines are considered, without the indented ones, of which a traceback has any number.
    """
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if TRACEBACK in line and not line.startswith("(")]
    if not starts:
        return ""
    for i in range(starts[-1] + 1, len(lines)):
        if _is_margin(lines[i]) and EXCEPTION_LINE.match(lines[i]):
            after = [line for line in lines[i + 1 :] if _is_margin(line)]
            over = len(after) >= LAST_LINES or _works_on(lines[: starts[-1]], after)
            return "" if over else "\n".join(lines[i:])
    return ""


def _is_margin(line: str) -> bool:
    return bool(line.strip()) and not line.startswith((" ", "\t"))


def _works_on(before: list[str], after: list[str]) -> bool:
    """Whether the script went on: a line of training, or one that looks like those before the traceback.

    Lines of the same shape differ in their numbers only. What processes write as they end looks like
    nothing before it, and Ray's own lines begin with a bracket.
    """
    shapes = {_shape(line) for line in before if _is_margin(line)}
    own = [line for line in after if not line.startswith(("(", "["))]
    twice = any(_shape(a) == _shape(b) for a, b in pairwise(own))
    return twice or any(WORK_LINE.match(line) or _shape(line) in shapes for line in own)


def _shape(line: str) -> str:
    return re.sub(r"[-+]?\d[\d.,:e+-]*", "#", line.strip())


def _by_signal(exit_code: int | None) -> bool:
    """Negative, or 128 and the signal's number as a shell has it; 247 is what some runtimes make of -9."""
    return exit_code is not None and (exit_code < 0 or 128 < exit_code < 160 or exit_code == 247)


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
    api: str = "",
    now: float = 0.0,
) -> tuple[Evidence, ...]:
    """All facts about an ended attempt, in one order. Texts must be redacted already."""
    facts: list[Evidence] = []
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
        # who was ended by a signal did not end by an exception: one in its log was handled
        raised = not (job and (job.exit_code == 0 or _by_signal(job.exit_code)))
        if raised and (exception := final_exception(log)):
            facts.append(Evidence("exception", exception, now))
        facts.append(Evidence("log", log, now))
    return tuple(facts)
