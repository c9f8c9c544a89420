"""From evidence to a failure class: an ordered table of rules, first hit wins.

What the supervisor itself did comes first, then the trainer's own hint, then the table in `failure_rules`.
Called by `ops.gather` when an attempt has ended, and by `ops.explain_log` for any log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from steadyray.contract import Failure, FailureClass

from ops.policy.culprits import culprit
from ops.policy.failure_rules import RULES
from ops.policy.log_lines import TELLING, Line, lines_of, stamp, steps_after
from ops.policy.model import Culprit, Evidence, JobView, Verdict
from ops.policy.rule import Rule
from ops.policy.tracebacks import (
    LAST_LINES,
    STEPS_AFTER_A_FAULT,
    Raised,
    final_exception,
    follows,
    headline,
    root_exception,
)
from ops.policy.treatments import TREATMENTS

__all__ = ["classify", "final_exception", "gather_evidence"]
F = FailureClass

HINT_CONFIDENCE = 0.98
INCIDENT_CONFIDENCE = 0.9
ABORTED = frozenset({"134", "-6"})
MOST_LINES = 4
"""Of one verdict, besides the line that decided."""


@dataclass(frozen=True, slots=True)
class Story:
    """The log of an attempt, read once: its lines, those worth asking about, and what was raised."""

    lines: list[Line]
    telling: list[tuple[Line, bool]]
    """With each whether work went on after it."""
    raised: Raised | None

    @property
    def own(self) -> Raised | None:
        """The script's own exception: no consequence of a fault of a machine or peer."""
        return self.raised if self.raised and not follows(self.raised.text) else None


@dataclass(frozen=True, slots=True)
class Hit:
    fact: Evidence
    match: re.Match[str]
    line: Line | None = None
    more: tuple[Line, ...] = ()


def classify(evidence: tuple[Evidence, ...]) -> Verdict:
    """The class of an ended attempt. The trainer's hint and what the supervisor itself did outrank rules."""
    for source, confidence in (("incident", INCIDENT_CONFIDENCE), ("hint", HINT_CONFIDENCE)):
        for fact in evidence:
            if fact.source == source and (found := _named(fact, confidence)):
                return found
    story = _read(evidence)
    for rule in RULES:
        if hit := _hit(rule, evidence, story):
            rule, hit = _earliest(rule, hit, evidence, story)
            return _verdict(rule, hit, evidence, story)
    return Verdict(F.UNKNOWN, "NoEvidence", "Nothing is known about this ending.", 0.0)


def _named(fact: Evidence, confidence: float) -> Verdict | None:
    """Evidence that names its class itself: `Class: message`."""
    word, _, message = fact.text.partition(": ")
    if word not in set(F):
        return None
    rule = "TrainerHint" if fact.source == "hint" else "SupervisorActed"
    return Verdict(F(word), rule, message, confidence, (fact,))


def _read(evidence: tuple[Evidence, ...]) -> Story:
    log = next((e.text for e in evidence if e.source == "log"), "")
    lines = lines_of(log) if log else []
    counts = steps_after(lines)
    telling = [
        (line, counts[i] > STEPS_AFTER_A_FAULT) for i, line in enumerate(lines) if TELLING.search(line.text)
    ]
    signalled = any(e.source == "exit" and e.text in ABORTED for e in evidence)
    known = any(e.source == "exception" for e in evidence)
    raised = root_exception(log, driver=not signalled) if known else None
    return Story(lines, telling, raised)


# --- which rule hits ----------------------------------------------------------------------------------
def _hit(rule: Rule, evidence: tuple[Evidence, ...], story: Story) -> Hit | None:
    for source in rule.sources:
        for fact in evidence:
            if fact.source != source or (rule.symptom and story.own):
                continue
            if source == "log" and rule.patterns:
                if found := _in_log(rule, fact, story):
                    return found
            elif match := re.search(rule.pattern, fact.text):
                return Hit(fact, match, story.raised.line if story.raised and source == "exception" else None)
    return None


def _earliest(rule: Rule, hit: Hit, evidence: tuple[Evidence, ...], story: Story) -> tuple[Rule, Hit]:
    """Of rules whose order says nothing about cause and effect, the one that hits first in the log."""
    found = [(rule, hit)]
    for other in RULES:
        if rule.contest and other.contest == rule.contest and other is not rule:
            found += [(other, found_there)] if (found_there := _hit(other, evidence, story)) else []
    return min(found, key=lambda f: f[1].line.number if f[1].line else 0)


def _in_log(rule: Rule, fact: Evidence, story: Story) -> Hit | None:
    """The earliest line that hits and still matters.

    A fault that the script got over explains neither an exception of another kind that it raised later nor
    an end after further steps. What others saw of a fault never explains an own exception.
    """
    own = story.own
    pattern = re.compile(rule.pattern)
    first = own.start if own else 0
    if TREATMENTS[rule.failure_class].budget == "none" and not rule.lasting:
        first = max(first, len(story.lines) - LAST_LINES)
    hits = [
        (line, match)
        for line, over in story.telling
        if line.number >= first and (rule.lasting or not over) and (match := pattern.search(line.text))
    ]
    if not hits:
        return None
    line, match = hits[0]
    return Hit(fact, match, line, tuple(x for x, _ in hits[1 : MOST_LINES + 1]))


# --- what a hit says ----------------------------------------------------------------------------------
def _verdict(rule: Rule, hit: Hit, evidence: tuple[Evidence, ...], story: Story) -> Verdict:
    message = rule.message
    if hit.fact.source == "exception":
        message = f"{message} {headline(hit.fact.text)}"
    elif hit.fact.source == "exit":
        spoke = "" if rule.failure_class is F.UNKNOWN else _last_words(evidence)
        message = f"{message} Exit code {hit.fact.text}{spoke}."
    shown = _shown(hit)
    named = _culprit(rule, hit, story)
    return Verdict(rule.failure_class, rule.name, message, rule.confidence, shown, named, rule.node_action)


def _culprit(rule: Rule, hit: Hit, story: Story) -> Culprit:
    """Of the first line of the evidence that names anybody."""
    if not rule.patterns:
        return Culprit()
    found = culprit(rule.failure_class, hit.line, _text(hit), story.lines)
    others = (culprit(rule.failure_class, x, x.text, story.lines) for x in hit.more)
    return found if found != Culprit() else next((c for c in others if c != Culprit()), found)


def _text(hit: Hit) -> str:
    """What may name the culprit: the line, or the whole exception."""
    return hit.fact.text[:4000] if hit.line is None or hit.fact.source != "log" else hit.line.text


def _shown(hit: Hit) -> tuple[Evidence, ...]:
    """The line that decided first, then others on which the same rule hits."""
    if hit.fact.source == "log" and hit.line is not None:
        return tuple(
            replace(hit.fact, text=x.text.strip()[:500], line=x.number, stamp=stamp(x.raw))
            for x in (hit.line, *hit.more)
        )
    text = _around(hit.fact.text, hit.match)
    if hit.line is None:
        return (replace(hit.fact, text=text),)
    return (replace(hit.fact, text=text, line=hit.line.number, stamp=stamp(hit.line.raw)),)


RAYS_FIRST_LINE = re.compile(r"Running entrypoint for job |.* -- Runtime env is setting up\.$")
"""Ray's own (the second of 2.49), at the top of each driver's log; where a script said nothing it is the
last one too."""


def _last_words(evidence: tuple[Evidence, ...]) -> str:
    """What a program that ends itself says last is mostly why; usage errors are like that."""
    log = next((e.text for e in evidence if e.source == "log"), "")
    lines = (x.strip() for x in reversed(log.splitlines()))
    line = next((x for x in lines if x and not RAYS_FIRST_LINE.match(x)), "")
    return f"; its last line: {line[:200].rstrip('.')}" if line else ""


def _around(text: str, match: re.Match[str]) -> str:
    """The line on which a match begins, with its end if the match runs on; enough for a person."""
    start = text.rfind("\n", 0, match.start()) + 1
    end = text.find("\n", match.end())
    return text[start : end if end >= 0 else len(text)].strip()[:500]


# --- evidence -----------------------------------------------------------------------------------------
def _by_signal(exit_code: int | None) -> bool:
    """Negative, or 128 and the signal's number as a shell has it; 247 is what some runtimes make of -9."""
    return exit_code is not None and (exit_code < 0 or 128 < exit_code < 160 or exit_code == 247)


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
        # who was ended by a signal did not end by an exception: one in its log was handled, but for that of a
        # rank for which the driver waited until a watchdog aborted it
        aborted = job is not None and str(job.exit_code) in ABORTED
        raised = aborted or not (job and (job.exit_code == 0 or _by_signal(job.exit_code)))
        if raised and (root := root_exception(log, driver=not aborted)):
            facts.append(Evidence("exception", root.text, now))
        facts.append(Evidence("log", log, now))
    return tuple(facts)
