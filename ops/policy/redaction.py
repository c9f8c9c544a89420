"""Takes secrets out of text and records before anything is stored, printed or reported; pure.

Called by `ops.record` on every record, by `ops.gather` on every piece of evidence and by the command line
on what it shows. Records are cleaned leaf by leaf before they are encoded: encoded JSON has quotes and
escapes of its own, which no pattern may touch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
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
NAME = rf"(?:{TOKEN}|secret|password|passwd|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
SECRET_NAME = re.compile(rf"(?i){NAME}")
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
    # user:password in the authority of a URL
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:\"'\\]*:[^\s/@\"'\\]+@"), r"\1" + HIDDEN + "@"),
    # keys in the query of a URL, and NAME=value where the name says what it is
    (
        re.compile(
            rf"(?i)([?&](?:[a-z0-9_.-]*(?:{NAME}|key(?!word|board)|signature)[a-z0-9_.-]*|sig)=)[^&\s\"'\\]+"
        ),
        r"\1" + HIDDEN,
    ),
    # NAME="a value with blanks": to the same quote that opened it
    (
        re.compile(
            rf"(?i)\b([a-z0-9_]*{NAME}[a-z0-9_]*{QUOTE}\s*[=:]\s*(?P<quote>\\*[\"']))(?!\[redacted\])"
            r"(?:(?!(?P=quote))[^\n]){6,}(?=(?P=quote))"
        ),
        r"\1" + HIDDEN,
    ),
    (
        re.compile(
            rf"(?i)\b([a-z0-9_]*{NAME}[a-z0-9_]*{QUOTE}\s*[=:]\s*{QUOTE})(?!\[redacted\]){CHAR}{{6,}}"
        ),
        r"\1" + HIDDEN,
    ),
    # well-known shapes: AWS key ids, GitHub, Hugging Face, Slack and OpenAI style tokens
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|hf_|xox[abprs]-|sk-)[A-Za-z0-9_-]{16,}\b"), HIDDEN),
)
OWN_KEY = re.compile(r"[a-z_]{1,32}")


def names_secret(name: str) -> bool:
    """Whether a variable, an option or a key is called after something that must stay secret."""
    return SECRET_NAME.search(name) is not None


def too_plain(value: str) -> bool:
    """Whether a value is so short or common that it cannot be hidden without hiding other things."""
    return len(value) < SHORTEST_SECRET or value.strip().casefold() in COMMON


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given values and without anything that looks like a credential.

    Longest first, so that a secret which contains another leaves no remainder behind. Common words are
    left as they are, shorter values are hidden where they stand alone.
    """
    for value in sorted(_forms(secrets), key=lambda v: (-len(v), v)):
        if len(value) >= SHORTEST_SECRET:
            text = text.replace(value, HIDDEN)
        elif value in text:
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", HIDDEN, text)
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
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
    """Each value as it may stand in a log: itself, escaped, and each line of one that has several."""
    found: set[str] = set()
    for value in secrets:
        if not value.strip() or value.casefold() in COMMON:
            continue
        found |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        found |= {repr(value)[1:-1], quote(value, safe="", errors="replace")}
        lines = [line.strip() for line in value.splitlines()]
        if len(lines) > 1:
            found |= {line for line in lines if not too_plain(line)}
    return {form for form in found if form.strip()}
