"""Says why a job ended from nothing but a log: class, culprit, evidence, actions. For `steadyray explain`.

A log may be larger than memory. It is read in pieces; of each shape of line that could tell something (lines
of one shape differ in their digits only) the first and last few are kept, with what follows them, and the
end of the log as it is. `ops.policy.failure` judges that extract as it judges the log of an attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from ops.policy.failure import classify, gather_evidence
from ops.policy.log_lines import TELLING
from ops.policy.model import Evidence, Verdict
from ops.policy.redaction import redact
from ops.policy.treatments import TREATMENTS

PIECE_BYTES = 1 << 20
LONGEST_LINE = 1 << 14
"""What is longer is cut: a file without a line break must not end up in memory as one line."""
KEPT_OF_A_SHAPE = 5
MOST_SHAPES = 2000
MOST_DULL_SHAPES = 50_000
FOLLOWING = 14
FOLLOWING_TRACEBACK = 80
TAIL_LINES = 2000
DIGITS = b"0123456789"
CERTAIN, LIKELY = 0.9, 0.7


@dataclass
class Shape:
    """Lines that differ in their digits only: how many there were, and which are kept."""

    seen: int = 0
    first: list[int] = field(default_factory=list)
    last: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_OF_A_SHAPE))


@dataclass
class Extract:
    """What is kept of a log: line number to text."""

    shapes: dict[bytes, Shape] = field(default_factory=dict)
    dull: set[bytes] = field(default_factory=set)
    kept: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    tail: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    lines: int = 0
    size: int = 0

    def add(self, lines: list[bytes], ahead: list[bytes]) -> None:
        """`ahead` is what follows `lines`, as far as it is known; it is added itself later."""
        shapes = b"\n".join(lines).translate(None, DIGITS).split(b"\n")
        last = {shape: i for i, shape in enumerate(shapes)}
        new = last.keys() - self.dull
        for shape in new:
            if shape in self.shapes or TELLING.search(shape.decode(errors="replace")):
                self._keep(shape, shapes, last[shape], lines, ahead)
            elif len(self.dull) < MOST_DULL_SHAPES:
                self.dull.add(shape)
        begin = max(0, len(lines) - TAIL_LINES)
        self.tail.extend((self.lines + i + 1, line) for i, line in enumerate(lines[begin:], begin))
        self.lines += len(lines)

    def _keep(
        self, name: bytes, shapes: list[bytes], last: int, lines: list[bytes], ahead: list[bytes]
    ) -> None:
        if name not in self.shapes and len(self.shapes) >= MOST_SHAPES:
            self._forget()
        shape = self.shapes.setdefault(name, Shape())
        at = -1
        while len(shape.first) < KEPT_OF_A_SHAPE and at < last:
            at = shapes.index(name, at + 1)
            shape.first.append(self._store(at, lines, ahead))
        if at < last:
            if len(shape.last) == KEPT_OF_A_SHAPE:
                self.kept.pop(shape.last[0], None)
            shape.last.append(self._store(last, lines, ahead))

    def _forget(self) -> None:
        """The shape that came first goes, so that a flood of odd lines cannot hide what came last."""
        old = self.shapes.pop(next(iter(self.shapes)))
        for number in (*old.first, *old.last):
            self.kept.pop(number, None)

    def _store(self, at: int, lines: list[bytes], ahead: list[bytes]) -> int:
        size = FOLLOWING_TRACEBACK if b"Traceback (" in lines[at] else FOLLOWING
        text = lines[at : at + size + 1]
        text += ahead[: size + 1 - len(text)]
        self.kept[self.lines + at + 1] = tuple(text)
        return self.lines + at + 1

    def text(self) -> tuple[str, list[int]]:
        """The extract as a log, and the number that each of its lines has in the file."""
        found: dict[int, bytes] = dict(self.tail)
        for number, block in self.kept.items():
            found.update(enumerate(block, number))
        numbers = sorted(found)
        return "\n".join(found[n].decode(errors="replace").replace("\x00", "") for n in numbers), numbers


def explain(stream: BinaryIO, name: str) -> dict[str, Any]:
    """The whole answer about one log, redacted, with stable keys."""
    extract = read(stream)
    log, numbers = extract.text()
    verdict = classify(gather_evidence(job=None, log=redact(log), hint=None))
    return _story(verdict, name, extract, numbers)


def read(stream: BinaryIO) -> Extract:
    """Every line passes once; a few dozen are held back so that what is kept has what follows it."""
    extract = Extract()
    held: list[bytes] = []
    for lines in _pieces(stream, extract):
        lines = held + lines
        held = lines[-FOLLOWING_TRACEBACK:]
        extract.add(lines[:-FOLLOWING_TRACEBACK], held)
    extract.add(held, [])
    return extract


def _pieces(stream: BinaryIO, extract: Extract) -> Iterator[list[bytes]]:
    rest = b""
    while piece := stream.read(PIECE_BYTES):
        extract.size += len(piece)
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        if len(rest) > LONGEST_LINE:
            rest = rest[: LONGEST_LINE // 2] + rest[-LONGEST_LINE // 2 :]
        yield _cut(lines)
    if rest:
        yield _cut([rest])


def _cut(lines: list[bytes]) -> list[bytes]:
    if max(map(len, lines), default=0) <= LONGEST_LINE:
        return lines
    half = LONGEST_LINE // 2
    return [x if len(x) <= LONGEST_LINE else x[:half] + x[-half:] for x in lines]


# --- the answer ---------------------------------------------------------------------------------------
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
