"""Takes secrets out of text before anything is stored, printed or reported; pure.

Called by `ops.supervise` on every piece of evidence and by the command line on what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "[redacted]"

SHORTEST_SECRET = 4
"""Values shorter than this are not searched for: hiding every `1` would make logs unreadable."""

PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Authorization: Bearer abc, "authorization": "Basic abc", x-ray-authorization: abc
    (
        re.compile(
            r"(?i)((?:x-ray-)?authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?)[^\s\"',}]+"
        ),
        r"\1" + HIDDEN,
    ),
    (re.compile(r"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{8,}"), r"\1" + HIDDEN),
    # user:password in the authority of a URL
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/@]+@"), r"\1" + HIDDEN + "@"),
    # keys in the query of a URL, and NAME=value where the name says what it is
    (
        re.compile(
            r"(?i)([?&](?:[a-z0-9_.-]*(?:token|key|secret|password|signature|credential)[a-z0-9_.-]*|sig)=)[^&\s\"']+"
        ),
        r"\1" + HIDDEN,
    ),
    (
        re.compile(
            r"(?i)\b([a-z0-9_]*(?:token|secret|password|passwd|api_?key|access_?key)[a-z0-9_]*"
            r"[\"']?\s*[=:]\s*[\"']?)(?!\[redacted\])[^\s\"',&;}]{6,}"
        ),
        r"\1" + HIDDEN,
    ),
    # well-known shapes: AWS key ids, GitHub, Hugging Face, Slack and OpenAI style tokens
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|hf_|xox[abprs]-|sk-)[A-Za-z0-9_-]{16,}\b"), HIDDEN),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given values and without anything that looks like a credential.

    Longest first, so that a secret which contains another leaves no remainder behind.
    """
    for value in sorted({s for s in secrets if len(s) >= SHORTEST_SECRET}, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    return text
