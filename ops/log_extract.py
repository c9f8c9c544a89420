"""Reads a log of any size once and keeps what may tell why a job ended, in bounded memory. For `explain_log`.

Lines that differ only in digits and hexadecimal letters have one shape: a look at each shape does for a look
at each line. Of every shape that tells something the first and last few lines are kept, and what follows
them. Shapes with the same telling words share a bucket of limited size, so that a flood of one kind of line
cannot push out another kind. The end of the log is kept as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from ops.log_words import Vocabulary

PIECE_BYTES = 1 << 20
LONGEST_LINE = 1 << 14
"""What is longer is cut: a file without a line break must not end up in memory as one line."""
FIRST_OF_A_SHAPE, LAST_OF_A_SHAPE = 32, 8
"""Enough for one line of each rank of a machine or two."""
SHAPES_OF_A_BUCKET = 24
MOST_BUCKETS = 1000
MOST_KNOWN_SHAPES = 50_000
FOLLOWING = {b"Traceback (": 80, b"rror": 14, b"xception": 14}
FOLLOWING_OTHERS = 2
HELD = max(FOLLOWING.values())
TAIL_LINES = 2000
NO_SHAPE = b"0123456789abcdef"


@dataclass(slots=True)
class Shape:
    """Numbers of the lines that are kept of one shape, or of what has no room of its own in a bucket."""

    first: int = 0
    last: deque[int] = field(default_factory=lambda: deque(maxlen=LAST_OF_A_SHAPE))


@dataclass
class Extract:
    """What is kept of a log: line number to text."""

    lines: int = 0
    size: int = 0
    tail: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _known: dict[bytes, Shape | None] = field(default_factory=dict)
    """None for a shape that tells nothing."""
    _buckets: dict[frozenset[bytes], list[Shape]] = field(default_factory=dict)
    _kept: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    _vocabulary: Vocabulary = field(default_factory=Vocabulary)

    def add(self, lines: list[bytes], shapes: list[bytes], ahead: list[bytes]) -> None:
        """`ahead` is what follows `lines`, as far as it is known; it is added itself later."""
        last = dict(zip(shapes, range(len(shapes)), strict=True))
        new = [name for name in last if name not in self._known]
        known = dict(zip(new, self._vocabulary.words_in([lines[last[name]] for name in new]), strict=True))
        found = {name: self._shape(name, known.get(name)) for name in last}
        telling = {name: shape for name, shape in found.items() if shape is not None}
        roomy = {name for name, shape in telling.items() if shape.first < FIRST_OF_A_SHAPE}
        if roomy:
            for at in [i for i, name in enumerate(shapes) if name in roomy]:
                shape = telling[shapes[at]]
                if shape.first < FIRST_OF_A_SHAPE:
                    shape.first += 1
                    self._keep(at, lines, ahead)
        for name, shape in telling.items():
            if self.lines + last[name] + 1 not in self._kept:
                if len(shape.last) == LAST_OF_A_SHAPE:
                    self._kept.pop(shape.last[0], None)
                shape.last.append(self._keep(last[name], lines, ahead))
        begin = max(0, len(lines) - TAIL_LINES)
        self.tail.extend((self.lines + i + 1, line) for i, line in enumerate(lines[begin:], begin))
        self.lines += len(lines)

    def _shape(self, name: bytes, words: frozenset[bytes] | None) -> Shape | None:
        if words is None:
            return self._known[name]
        shape = self._place(words) if words else None
        if len(self._known) < MOST_KNOWN_SHAPES:
            self._known[name] = shape
        return shape

    def _place(self, words: frozenset[bytes]) -> Shape:
        """The last place of a bucket is for all that come later; the same with the last bucket."""
        if words not in self._buckets and len(self._buckets) >= MOST_BUCKETS:
            words = frozenset()
        bucket = self._buckets.setdefault(words, [])
        if len(bucket) < SHAPES_OF_A_BUCKET:
            bucket.append(Shape())
        return bucket[-1]

    def _keep(self, at: int, lines: list[bytes], ahead: list[bytes]) -> int:
        line = lines[at]
        size = 1 + next((n for word, n in FOLLOWING.items() if word in line), FOLLOWING_OTHERS)
        text = lines[at : at + size]
        self._kept[self.lines + at + 1] = (*text, *ahead[: size - len(text)])
        return self.lines + at + 1

    def text(self) -> tuple[str, list[int]]:
        """The extract as a log, and the number that each of its lines has in the file."""
        found: dict[int, bytes] = dict(self.tail)
        for number, block in self._kept.items():
            found.update(enumerate(block, number))
        numbers = sorted(found)
        return "\n".join(found[n].decode(errors="replace").replace("\x00", "") for n in numbers), numbers


def read(stream: BinaryIO) -> Extract:
    """Every line passes once; a few are held back so that what is kept has what follows it."""
    extract = Extract()
    held: tuple[list[bytes], list[bytes]] = ([], [])
    for piece in _pieces(stream, extract):
        lines = held[0] + _cut(piece.split(b"\n"))
        shapes = held[1] + piece.translate(None, NO_SHAPE).split(b"\n")
        held = (lines[-HELD:], shapes[-HELD:])
        extract.add(lines[:-HELD], shapes[:-HELD], held[0])
    extract.add(*held, [])
    return extract


def _pieces(stream: BinaryIO, extract: Extract) -> Iterator[bytes]:
    """Whole lines each, without the last line break."""
    rest = b""
    while piece := stream.read(PIECE_BYTES):
        extract.size += len(piece)
        whole, found, rest = (rest + piece).rpartition(b"\n")
        if len(rest) > LONGEST_LINE:
            rest = _short(rest)
        if found:
            yield whole
    if rest:
        yield rest


def _cut(lines: list[bytes]) -> list[bytes]:
    return [_short(x) for x in lines] if max(map(len, lines)) > LONGEST_LINE else lines


def _short(line: bytes) -> bytes:
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else line[:half] + line[-half:]
