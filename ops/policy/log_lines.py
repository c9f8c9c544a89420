"""A log as lines that know who wrote them (rank, node, host), without the prefixes of Ray, torchrun, syslog.

Called by `failure`, `tracebacks` and `culprits`; `ops.explain_log` asks `TELLING` which lines of a large file
are worth keeping.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WORDS = """
rror xception Traceback ailed ailure aulted fatal Fatal panic orrupt nvalid llegal abort Abort assert
rash exitcode signal Segmentation core~dumped KeyboardInterrupt Killed kill Terminated exited CANCELLED
Cancelled reempt PREEMPT deadline time~limit~of instance-action nterruption EventType reclaimed imminent
HOST_MAINTENANCE instance-re system-maintenance system-reboot cordoned drained vict GCS heartbeats
NotReady StatusUnknown Kubelet node.kubernetes.io flavors uota workload~is nodes~are~available
Insufficient LimitExceeded CountExceeded EXHAUSTED SkuNot Overconstrained No~available~node timed~out
Timed~out cannot~be~scheduled nschedulable UNSCHEDULABLE dial~tcp nable~to etcdserver Max~retries
intentionally~stopped supervisor~actor ACTOR_ already~started does~not~exist ImagePull ErrImage
CreateContainer pull~image Xid uncorrectable remap off~the~bus GPU~is~lost NVSwitch lowdown hermal
ower~brake EDAC ncorrected not~ready Remounting GpuUnhealthy NVSentinel ut~of~memory low~on invoked~oom
oom-kill OOM OF_MEMORY ~memory CUBLAS CUDNN DataLoader~worker not~responding Lustre Errno full,~avail
OutOfDisk utilization~is ephemeral total~limit~of DiskPressure Link~ NET/IB ibv_ IBV_ NETDEV Hang hang~
hanging blocked~for atchdog monitoredBarrier Connection Broken~pipe socket~has name~resolution not~known
Rendezvous No~route unreachable =nan :~nan is~nan NaN nan~values is~inf infinite finite result~nan
result~inf shm GLIBC expired Expired redentials InvalidClient driver kernel~image mismatch open~files
new~thread ncclInvalid Duplicate Could~not Key~' not~found can't~open runtime_env set~aside
ost~its~state double~free free() munmap malloc socket~interface running~Ray
mistakenly oom_kill Out~Of~Memory nodes~are~available~that not~yet~initialized

PRIVATE~KEY SIG Signals Caught pot_interrupted potInterrupted PREEMPTED async ssh: NET/IB~: at~minimum
"""
"""What programs, Ray, Kubernetes, clouds, kernels and devices call a fault; `~` is a blank, no digits."""


def _alternatives(words: tuple[str, ...]) -> str:
    """Grouped by first letter, since an engine without a trie tries one branch after the other."""
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(word[0], []).append(re.escape(word[1:]))
    return "|".join(re.escape(first) + f"(?:{'|'.join(rest)})" for first, rest in groups.items())


TELLING_WORDS = tuple(word.replace("~", " ") for word in WORDS.split())
TELLING = re.compile(_alternatives(TELLING_WORDS))
"""Every line on which a rule for logs can hit holds one of these; a test looks after it."""

ANSI = re.compile(r"\x1b?\[[0-9;]+m")
"""Also where the escape itself was lost on the way."""
PREFIXES = {
    # (Rank pid=7, ip=10.0.0.7) and (raylet, ip=10.0.0.7)
    "(": (re.compile(r"\((?P<name>[\w.:<>]+)(?: pid=(?P<pid>\d+))?(?:, ip=(?P<node>[\w.:-]+))?\)\s?"),),
    "[": (
        re.compile(r"\[rank(?P<rank>\d+)\]:\s?"),
        re.compile(r"\[default\d+\]:\s?"),
        re.compile(r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:\s?"),
        re.compile(r"\[pod/(?P<node>[\w.-]+)/[\w.-]+\]\s?"),
    ),
    # kubectl logs --timestamps, and the files of the kubelet
    "0": (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d):? (?:std(?:out|err) [FP] )?"),),
    # docker compose
    "a": (re.compile(r"(?P<name>[a-z][\w.-]*) +\| "),),
    # syslog
    "A": (re.compile(r"[A-Z][a-z]{2} [ \d]\d [\d:]{8} (?P<host>[\w.-]+) (?=[\w./-]+(?:\[\d+\])?: )"),),
}
"""By the first character of the line: a bracket, a digit, a small or a capital letter."""
STAMP = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d\b|(?<=[EWIF])\d{4} \d\d:\d\d:\d\d\.\d+"
)
STEP = re.compile(r"(?i)\b(?:(?:global[ _-]?)?step|iter(?:ation)?)s?[ =:]+(\d+)|\b(\d+)/\d+ \[\d+:\d\d")


@dataclass(frozen=True, slots=True)
class Line:
    """One line. `number` counts from 1; `text` is without prefixes; `stream` tells writers apart."""

    number: int
    text: str
    raw: str
    stream: str = ""
    rank: int | None = None
    node: str = ""
    host: str = ""


def parse(raw: str, number: int) -> Line:
    text = raw.rstrip("\r").rpartition("\r")[2]
    text = ANSI.sub("", text) if "\x1b" in text or "[0m" in text else text
    found: dict[str, str | None] = {}
    streams: list[str] = []
    while match := next((m for p in PREFIXES.get(_kind(text), ()) if (m := p.match(text))), None):
        text = text[match.end() :]
        groups = match.groupdict()
        found |= {k: v for k, v in groups.items() if v}
        streams += [v for k in ("name", "pid", "rank") if (v := groups.get(k))]
    rank = found.get("rank")
    return Line(
        number,
        text,
        raw,
        "/".join(streams),
        int(rank) if rank else None,
        found.get("node") or "",
        found.get("host") or "",
    )


def _kind(text: str) -> str:
    first = text[:1]
    return (
        first
        if first in "(["
        else "0"
        if first.isdecimal()
        else "A"
        if first.isupper()
        else "a"
        if first.islower()
        else ""
    )


def lines_of(log: str) -> list[Line]:
    return [parse(raw, n) for n, raw in enumerate(log.split("\n"), 1)]


def stamp(text: str) -> str:
    """The time that a line carries, as it is written there."""
    found = STAMP.search(text)
    return found[0] if found else ""


def steps_after(lines: list[Line]) -> list[int]:
    """For each line how many different steps are named after it: work that went on, whoever prints it."""
    seen: set[str] = set()
    counts = [0] * len(lines)
    for i in range(len(lines) - 1, -1, -1):
        counts[i] = len(seen)
        if match := STEP.search(lines[i].text):
            seen.add(match[1] or match[2])
    return counts
