"""The exceptions in a log, of the driver and of its ranks, and which is the root. Called by `failure`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from ops.policy.failure_rules import CASCADE
from ops.policy.log_lines import Line, lines_of, steps_after

TRACEBACK = "Traceback (most recent call last)"
EXCEPTION_LINE = re.compile(r"^(?:[A-Za-z_][\w.]*)(?:\([\w.]+\))?(?::.*)?$")
BARE_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|CheckpointCorrupt)\b: \S")
LAST_LINES = 60
RANKS_LINES = 12
"""How much of what a rank writes after its exception is taken for its message."""
STEPS_AFTER_A_FAULT = 3
"""Ranks may print a step or so after a fault; one more different step means that work went on."""
WORK_LINE = re.compile(
    r"(?i)^\W*(?:(?:global[ _-]?)?step|epoch|iter(?:ation)?|batch|train(?:ing)?|eval\w*|loss)\b"
    r"|^\W*\d{4}-\d\d-\d\d[T ][\d:.,]+\S*\W+(?:\S+\W+)?(?:INFO|DEBUG)\b|^(?:INFO|DEBUG)\b"
)
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception: its text, where its chain of tracebacks begins, and who wrote it."""

    text: str
    start: int
    """Number of the line, from 1; 0 if it was not looked for."""
    line: Line


def final_exception(log: str) -> str:
    """The exception, with its message, of the last traceback that ends the log; empty if there is none.

    A traceback in the middle of a log was handled or belongs to somebody else. Text may follow an
    exception's own lines (Ray writes its process ids), so what counts is that no new work follows: only
    the last 60 lines are considered, without the indented ones, of which a traceback has any number.
    """
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if TRACEBACK in line and not line.startswith(("(", "[rank"))]
    if not starts:
        return ""
    for i in range(starts[-1] + 1, len(lines)):
        if _is_margin(lines[i]) and EXCEPTION_LINE.match(lines[i]):
            after = [line for line in lines[i + 1 :] if _is_margin(line)]
            over = len(after) >= LAST_LINES or _works_on(lines[: starts[-1]], after)
            return "" if over else "\n".join(lines[i:])
    return ""


def root_exception(log: str, *, driver: bool = True) -> Raised | None:
    """What ended the program: the driver's last exception, or if that one follows from another, the earliest
    own exception of a rank. Ranks that waited for it raise as well, and louder."""
    lines = lines_of(log)
    if not driver:
        own = [r for r in _ranks(lines) if not follows(r.text)]
        return min(own, key=lambda r: r.start, default=None)
    last = final_exception(log)
    final = Raised(last, *_place(lines, last)) if last else None
    if final and not follows(final.text):
        return _earlier(_ranks(lines), final) or final
    fresh = _all_fresh(lines)
    own = [r for r in fresh if not follows(r.text)]
    if own:
        return min(own, key=lambda r: r.start)
    return final or (min(fresh, key=lambda r: r.start) if fresh else _bare(lines))


def follows(text: str) -> bool:
    """Whether an exception is a consequence of a fault of a machine or peer."""
    return re.search("|".join(CASCADE), named_error(text), re.MULTILINE) is not None


def named_error(exception: str) -> str:
    """The exception's line; where a task of Ray raised it, that line stands below the remote traceback."""
    if not exception.startswith("ray.exceptions.RayTaskError"):
        return headline(exception)
    return "\n".join(line for line in exception.splitlines() if _is_margin(line))


def headline(exception: str) -> str:
    return exception.strip().splitlines()[0][:300] if exception.strip() else ""


def _earlier(ranks: list[Raised], final: Raised) -> Raised | None:
    """The rank's own exception that the driver only repeats."""
    same = [r for r in ranks if not follows(r.text) and headline(r.text) in final.text]
    return min(same, key=lambda r: r.start, default=None)


def _ranks(lines: list[Line]) -> list[Raised]:
    return [r for r in _all_fresh(lines) if r.line.stream]


def _all_fresh(lines: list[Line]) -> list[Raised]:
    """Every exception that no work followed, of every writer; lines of several writers may be interleaved."""
    counts = steps_after(lines)
    open_at: dict[str, int] = {}
    found: list[Raised] = []
    for i, line in enumerate(lines):
        if TRACEBACK in line.text:
            open_at.setdefault(line.stream, i)
        elif line.stream in open_at and _is_margin(line.text) and EXCEPTION_LINE.match(line.text):
            start = open_at.pop(line.stream)
            if counts[i] <= STEPS_AFTER_A_FAULT:
                found.append(Raised(_message(lines, i), start + 1, line))
    return found


def _message(lines: list[Line], at: int) -> str:
    mine = [x.text for x in lines[at : at + 10 * RANKS_LINES] if x.stream == lines[at].stream]
    ends = next((i for i, text in enumerate(mine[1:], 1) if TRACEBACK in text), len(mine))
    return "\n".join(mine[: min(ends, RANKS_LINES)])


def _bare(lines: list[Line]) -> Raised | None:
    """An exception that some program printed without its traceback, at the very end."""
    for line in reversed(lines[-LAST_LINES:]):
        if BARE_EXCEPTION.match(line.text):
            return Raised(line.text, line.number, line)
        if line.text.strip() and WORK_LINE.match(line.text):
            return None
    return None


def _place(lines: list[Line], exception: str) -> tuple[int, Line]:
    """Where the first traceback of its chain begins, and the exception's own line."""
    head = exception.splitlines()[0]
    at = next((i for i in range(len(lines) - 1, -1, -1) if lines[i].raw == head), len(lines) - 1)
    return chain_start(lines, at) + 1, lines[at]


def chain_start(lines: list[Line], at: int) -> int:
    """The chain is one story; its first traceback's index."""
    start = _before(lines, at)
    while start and _last_text(lines, start).startswith(CHAINED):
        earlier = _before(lines, start)
        if earlier == start:
            break
        start = earlier
    return start


def _before(lines: list[Line], at: int) -> int:
    return next((i for i in range(at - 1, -1, -1) if TRACEBACK in lines[i].text), at if at else 0)


def _last_text(lines: list[Line], at: int) -> str:
    return next((lines[i].text for i in range(at - 1, -1, -1) if lines[i].text.strip()), "")


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
