"""Which lines of many hold a telling word, as quickly as bytes can be searched. Called by `ops.log_extract`.

Some two hundred words are looked for. To search all lines for each of them takes a second for ten megabytes,
so the different tokens of the text are looked at first: they are far fewer, and most were seen before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from ops.policy.log_lines import TELLING_WORDS

WORDS = tuple(word.encode() for word in TELLING_WORDS)
STEMS = tuple({max(word.split(b" "), key=len) for word in WORDS})
"""Of each word the longest part without a blank: a line with the word has a token with the stem."""
DIGITS = b"0123456789"
MOST_TOKENS = 200_000
MANY = 300


@dataclass
class Vocabulary:
    """The tokens that were seen so far, and those of them that hold a stem."""

    _seen: set[bytes] = field(default_factory=set)
    _telling: set[bytes] = field(default_factory=set)

    def words_in(self, lines: list[bytes]) -> list[frozenset[bytes]]:
        """The telling words of each line."""
        found = [frozenset[bytes]()] * len(lines)
        at = self._promising(lines)
        for index, words in zip(at, _found(WORDS, [lines[i] for i in at]), strict=True):
            found[index] = frozenset(words)
        return found

    def _promising(self, lines: list[bytes]) -> list[int]:
        text = b"\n".join(lines).translate(None, DIGITS)
        tokens = set(text.split())
        new = list(tokens - self._seen)
        hot = (tokens & self._telling) | {
            t for t, stems in zip(new, _found(STEMS, new), strict=True) if stems
        }
        if len(self._seen) < MOST_TOKENS:
            self._seen.update(new)
            self._telling |= hot
        if len(hot) > MANY:
            return list(range(len(lines)))
        return [i for i, words in enumerate(_found(hot, text.split(b"\n"))) if words] if hot else []


def _found(words: Iterable[bytes], lines: list[bytes]) -> list[set[bytes]]:
    """All lines are searched at once: that is what bytes are quick at."""
    text = b"\n".join(lines)
    ends = list(accumulate(len(line) + 1 for line in lines))
    found: list[set[bytes]] = [set() for _ in lines]
    for word in words:
        at = text.find(word)
        while at >= 0:
            line = bisect_right(ends, at)
            found[line].add(word)
            at = text.find(word, ends[line])
    return found
