"""Takes secrets out of text and records before anything is stored, printed or reported; pure.

Called by `ops.record` on every record, by `ops.gather` on every piece of evidence and by the command line
on what it shows. Records are cleaned leaf by leaf before they are encoded: encoded JSON has quotes and
escapes of its own, which no pattern may touch.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import quote

from steadyray.contract import EventKind, FailureClass

from ops.policy.model import Action, JobStatus, RunState

HIDDEN = "[redacted]"

SHORTEST_SECRET = 6
"""Shorter values are hidden only where they stand alone: hiding every `1` would make logs unreadable."""

COMMON = frozenset(
    word.casefold()
    for word in (
        *(
            "true",
            "false",
            "none",
            "null",
            "enabled",
            "disabled",
            "default",
            "localhost",
            "offline",
            "online",
        ),
        *(
            member.value
            for names in (Action, JobStatus, RunState, EventKind, FailureClass)
            for member in names
        ),
    )
)
"""Words of ordinary logs and of our own records, which no record could do without."""

# `tokens`, `tokenizer` and the special tokens of a vocabulary are matters of training, not credentials
TOKEN = r"(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!sep_)(?<!mask_)token(?!s|i[sz]|_ids?\b|_type|_count|_len)"
NAME = (
    rf"(?:{TOKEN}|secret|password|passwd|passphrase|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key"
    r"|shared[_-]?access[_-]?signature|credential)"
)
SECRET_NAME = re.compile(rf"(?i){NAME}")
WORD = "[a-z0-9_]{0,64}"
PART = "[a-z0-9_.-]{0,64}"
"""Of a name, before and after what gives it away; bounded, or a long line would cost its length squared."""
QUOTE = r"(?:\\*[\"'])?"
"""As a text inside of JSON has it, too: with backslashes before it."""
CHAR = r"(?:[^\s\"'\\,&;}]|\\(?!\\*[\"']))"
"""Of an unquoted value; a backslash only where it does not escape the quote that ends the value."""

PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"),
        HIDDEN,
    ),
    # Authorization: Bearer abc, "authorization": "Basic abc", x-ray-authorization: abc
    (
        re.compile(
            rf"(?i)((?:x-ray-)?authorization{QUOTE}\s*[:=]\s*{QUOTE}(?:(?:bearer|basic|token)\s+)?){CHAR}+"
        ),
        r"\1" + HIDDEN,
    ),
    (re.compile(r"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{8,}"), r"\1" + HIDDEN),
    (re.compile(r"(?i)\b(basic\s+)(?=[a-z+/]*[0-9=])[a-z0-9+/]{12,}={0,2}"), r"\1" + HIDDEN),
    (re.compile(r"(?im)\b((?:set-)?cookie:\s*)[^\s\"'][^\n\"']*"), r"\1" + HIDDEN),
    # user:password, or a token alone, in the authority of a URL
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@:\"'\\]*:[^\s/@\"'\\]+@"), r"\1" + HIDDEN + "@"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://)[^\s/@:\"'\\]{12,}@"), r"\1" + HIDDEN + "@"),
    # --password VALUE; what an option calls a file, a name or the like is none
    (
        re.compile(
            rf"(?i)(?<![\w-])(--?{PART}{NAME}(?!{PART}(?:file|path|dir|env|name|id|type)\b){PART}"
            rf"\s+{QUOTE})(?!-|\[redacted\]){CHAR}{{4,}}"
        ),
        r"\1" + HIDDEN,
    ),
    (
        re.compile(r"(?i)\b((?:wandb|comet|neptune|docker|helm|az|oc)\s+login\s[^\n]{0,80}?)[a-z0-9_-]{24,}"),
        r"\1" + HIDDEN,
    ),
    # pwd=VALUE, but not the working directory
    (
        re.compile(rf"(?i)\b(pwd{QUOTE}\s*[=:]\s*{QUOTE})(?![/~.]|[a-z]:\\|\[redacted\]){CHAR}{{4,}}"),
        r"\1" + HIDDEN,
    ),
    # keys in the query of a URL, and NAME=value where the name says what it is
    (
        re.compile(rf"(?i)([?&](?:{PART}(?:{NAME}|key(?!word|board)|signature){PART}|sig)=)[^&\s\"'\\]+"),
        r"\1" + HIDDEN,
    ),
    # NAME="a value with blanks": to the same quote that opened it
    (
        re.compile(
            rf"(?i)\b({WORD}{NAME}{WORD}{QUOTE}\s*[=:]\s*(?P<quote>\\*[\"']))(?!\[redacted\])"
            r"(?:(?!(?P=quote))[^\n]){6,}(?=(?P=quote))"
        ),
        r"\1" + HIDDEN,
    ),
    (
        re.compile(rf"(?i)\b({WORD}{NAME}{WORD}{QUOTE}\s*[=:]\s*{QUOTE})(?!\[redacted\]){CHAR}{{6,}}"),
        r"\1" + HIDDEN,
    ),
    # well-known shapes: AWS keys, JSON web tokens, and the prefixes by which providers mark their tokens
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b(?:[\s:,;]{1,3}[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+]))?"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{8,2000}(?:\.[A-Za-z0-9_-]{0,2000})?"), HIDDEN),
    (
        re.compile(
            r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|xox[abprs]-|xapp-|sk-|sk_live_|rk_live_|npm_|pypi-|dop_v1_|r8_"
            r"|AIza|ya29\.|SG\.)[A-Za-z0-9_.-]{15,}[A-Za-z0-9_-]"
        ),
        HIDDEN,
    ),
)
LINE_BREAK = re.compile(r"(?:\\[rn]|[\r\n])+(?:\([^()\n]{0,60}\)[ ]?)?[ \t]*")
"""Where a terminal or a logger has wrapped a value, as it is or escaped; Ray begins lines with a bracket."""
SHORTEST_WRAPPED = 12
SHORTEST_REST = 4
"""Of a value that a cut has left at the edge of a text."""
OWN_KEY = re.compile(r"[a-z_]{1,32}")


def names_secret(name: str) -> bool:
    """Whether a variable, an option or a key is called after something that must stay secret."""
    return SECRET_NAME.search(name) is not None


def too_plain(value: str) -> bool:
    """Whether a value is so short or common that it cannot be hidden without hiding other things."""
    return len(value) < SHORTEST_SECRET or value.strip().casefold() in COMMON


def redact(text: str, secrets: Iterable[str] = (), *, cut: bool = False) -> str:
    """`text` without the given values and without anything that looks like a credential.

    Longest first, so that a secret which contains another leaves no remainder behind. Common words are
    left as they are, shorter values are hidden where they stand alone. `cut` texts are the tail of a longer
    one: what is left of a value at their edges is hidden too.
    """
    forms = sorted(_forms(secrets), key=lambda v: (-len(v), v))
    for value in forms:
        if len(value) >= SHORTEST_SECRET:
            text = text.replace(value, HIDDEN)
        elif value in text:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", HIDDEN, text)
    text = _without_wrapped(text, [value for value in forms if len(value) >= SHORTEST_WRAPPED])
    if cut:
        text = _without_rests(text, forms)
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _without_wrapped(text: str, values: Iterable[str]) -> str:
    """Without values that have a line break in them: they are looked for in the text without its breaks."""
    breaks = [found.span() for found in LINE_BREAK.finditer(text)]
    if not breaks:
        return text
    pieces = [text[end:start] for (_, end), (start, _) in pairwise([(0, 0), *breaks, (len(text), 0)])]
    starts = [0, *(end for _, end in breaks)]
    offsets = list(accumulate((len(piece) for piece in pieces), initial=0))
    joined = "".join(pieces)

    def place(at: int) -> int:
        piece = bisect_right(offsets, at, hi=len(pieces)) - 1
        return starts[piece] + at - offsets[piece]

    found = (at.span() for value in values for at in re.finditer(re.escape(value), joined))
    before = len(text)
    for first, last in sorted(((place(start), place(end - 1) + 1) for start, end in found), reverse=True):
        overlaps = last > before  # with what was hidden just now
        text = text[:first] + ("" if overlaps else HIDDEN) + text[before if overlaps else last :]
        before = first
    return text


def _without_rests(text: str, forms: Iterable[str]) -> str:
    for value in forms:
        for size in range(len(value) - 1, SHORTEST_REST - 1, -1):
            if text.startswith(value[-size:]):
                text = HIDDEN + text[size:]
            if text.endswith(value[:size]):
                text = text[:-size] + HIDDEN
    return text


def redact_record(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same for what becomes JSON: every text in it, and every text under a key that names a secret.

    Numbers, booleans and null stay; what JSON does not know becomes text here, so that it is cleaned too.
    Plain keys are those of our own records; others may come from a script and are cleaned like a text.
    """
    known = tuple(secrets)
    if isinstance(value, Mapping):
        return {_key(str(key), known): _under(str(key), inner, known) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact_record(inner, known) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(str(value), known)


def _key(key: str, secrets: tuple[str, ...]) -> str:
    return key if OWN_KEY.fullmatch(key) else redact(key, secrets)


def _under(key: str, value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str) and value and names_secret(key) and value.casefold() not in COMMON:
        return HIDDEN
    return redact_record(value, secrets)


def _forms(secrets: Iterable[str]) -> set[str]:
    """Each value as it may stand in a log: itself, escaped, encoded, and each line of several."""
    found: set[str] = set()
    for value in secrets:
        if not value.strip() or value.casefold() in COMMON:
            continue
        found |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        found |= {repr(value)[1:-1], quote(value, safe="", errors="replace")}
        if len(value) >= SHORTEST_SECRET:
            found |= _encoded(value.encode(errors="replace"))
        lines = [line.strip() for line in value.splitlines()]
        if len(lines) > 1:
            found |= {line for line in lines if not too_plain(line)}
    return {form for form in found if form.strip()}


def _encoded(value: bytes) -> set[str]:
    """In hex, and in base64 wherever in the encoded bytes it begins; at its ends it shares letters."""
    found = {value.hex(), value.hex().upper()}
    for before in range(3):
        whole = base64.b64encode(bytes(before) + value).decode().rstrip("=")
        core = whole[(0, 2, 3)[before] : len(whole) if (before + len(value)) % 3 == 0 else -1]
        found |= {core, core.replace("+", "-").replace("/", "_")}
    return {form for form in found if len(form) >= SHORTEST_SECRET}
