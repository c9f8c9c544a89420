"""Whom the evidence points at: rank, node (Ray's, or the pod) and host (the machine). Called by `failure`."""

from __future__ import annotations

import re

from steadyray.contract import FailureClass

from ops.policy.log_lines import Line
from ops.policy.model import Culprit

WORLD_SIZE = re.compile(r"world[_ ]size[=: ]+(\d+)", re.IGNORECASE)
TIMED_OUT = re.compile(r"\[?[Rr]ank (\d+)\]?.*Watchdog caught collective operation timeout")
ENQUEUED = re.compile(r"Rank (\d+)\].*last enqueued NCCL work: (\d+)")
NAMED_ABSENT = re.compile(r"Ranks? (\d+) failed to pass monitoredBarrier")
RANK = re.compile(
    r"\[[Rr]ank (\d+)\b|^Rank (\d+),|\brank *[:=] *(\d+) \(local_rank|process rank (\d+) with PID"
)
NODE = re.compile(r"(?:\baddress: |\bIP: |\bip[=:] ?|Node IP: )(\d+\.\d+\.\d+\.\d+)")
POD = re.compile(r"\bpod/([a-z0-9][\w.-]*)|^Name: +([\w.-]+)")
HOST = (
    re.compile(r"\bnode/([A-Za-z0-9][\w.-]*)"),
    re.compile(r"\bON ([\w.-]+) CANCELLED"),
    re.compile(r"^srun: error: ([\w.-]+): task"),
    re.compile(r"([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] "),
    re.compile(r"(?<!remote )\bhost *[:=] *([A-Za-z0-9][\w.-]*)"),
    re.compile(r"\b(?:node|host)[=: ]+['\"]?([A-Za-z][\w.-]*\d[\w.-]*)", re.IGNORECASE),
)
DEAD_NODE = re.compile(r"\band address: (\S+) and node name")
DEAD_WORKER = re.compile(r"worker died or was killed.* Worker IP address: (\S+)")
PLACED = re.compile(r"\((?:node_id=\w+, )?ip=(?P<ip>[\w.:]+), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d+)")
PID = re.compile(r"/(\d+)")
MACHINES = frozenset(
    {
        FailureClass.HARDWARE_FAULT,
        FailureClass.NODE_LOST,
        FailureClass.NETWORK_FAULT,
        FailureClass.MAINTENANCE,
    }
)
ROOT_CAUSE = "Root Cause (first observed failure)"


def culprit(kind: FailureClass, at: Line | None, text: str, lines: list[Line]) -> Culprit:
    """Whom the line of the verdict names; in a collective time-out the rank that did *not* complain."""
    if kind is FailureClass.COLLECTIVE_TIMEOUT:
        return _silent(lines)
    if kind is FailureClass.WORKER_CRASH and (found := _root_cause(lines)):
        return found
    if at is None:
        return Culprit()
    rank = _first(RANK, text) if at.rank is None else str(at.rank)
    node = _first(DEAD_NODE, text) or at.node or _first(NODE, text) or _first(POD, text)
    host = at.host or next((f for p in HOST if (f := _first(p, text))), "")
    if kind is FailureClass.WORKER_CRASH and not node and not rank:
        node = next((f for x in lines if (f := _first(DEAD_WORKER, x.text))), "")
    if described := "" if node or host else _described(lines):
        node, host = ("", described) if kind in MACHINES else (described, "")
    if at.rank is None and at.stream and not rank:
        rank = _rank_of(at.stream, lines)
    if not host and not node and not rank and kind in MACHINES:
        host = _only_host(lines)
    return Culprit(rank=int(rank) if rank else None, node=node, host=host)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return next((g for g in match.groups() if g), "") if match else ""


def _only_host(lines: list[Line]) -> str:
    """The machine that a log speaks of, if it is one: of several, none is blamed."""
    named = {x.host for x in lines if x.host} | {f for x in lines for p in HOST if (f := _first(p, x.text))}
    return named.pop() if len(named) == 1 else ""


def _described(lines: list[Line]) -> str:
    """`kubectl describe` names its pod or node once, at the top."""
    first = next((x.text for x in lines if x.text.strip()), "")
    return _first(POD, first) if first.startswith("Name: ") else ""


def _rank_of(stream: str, lines: list[Line]) -> str:
    """Ray Train says once which process has which rank."""
    pid = _first(PID, stream)
    placed = (m for x in lines if (m := PLACED.search(x.text)))
    return next((m["rank"] for m in placed if m["pid"] == pid), "")


def _root_cause(lines: list[Line]) -> Culprit | None:
    """The block in which torchrun names the rank that failed first."""
    at = next((i for i, x in enumerate(lines) if ROOT_CAUSE in x.text), None)
    if at is None:
        return None
    block = "\n".join(x.text for x in lines[at : at + 9])
    rank = re.search(r"\brank +: (\d+)", block)
    host = re.search(r"\bhost +: (\S+)", block)
    return Culprit(rank=int(rank[1]) if rank else None, host=host[1] if host else "")


def _silent(lines: list[Line]) -> Culprit:
    texts = [x.text for x in lines]
    named = next((m[1] for t in texts if (m := NAMED_ABSENT.search(t))), None)
    rank = int(named) if named else _not_complaining(texts)
    if rank is None:
        rank = _behind(texts)
    if rank is None:
        return Culprit()
    seen = next((x for x in lines if x.rank == rank and x.node), None)
    placed = next((m for t in texts if (m := PLACED.search(t)) and int(m["rank"]) == rank), None)
    told = re.search(rf"[Rr]ank {rank}\b[^\n]*?(?:node|host)[=: ]+([\w.-]+)", "\n".join(texts))
    node = placed["ip"] if placed else seen.node if seen else ""
    return Culprit(rank=rank, node=node, host=told[1] if told else "")


def _not_complaining(texts: list[str]) -> int | None:
    loud = {int(m[1]) for t in texts if (m := TIMED_OUT.search(t))}
    if not loud:
        return None
    size = next((int(m[1]) for t in texts if (m := WORLD_SIZE.search(t))), max(loud) + 1)
    silent = sorted(set(range(size)) - loud)
    return silent[0] if len(silent) == 1 else None


def _behind(texts: list[str]) -> int | None:
    """Where all complain, the one that had enqueued least."""
    work = {int(m[1]): int(m[2]) for t in texts if (m := ENQUEUED.search(t))}
    least = [r for r, n in work.items() if n == min(work.values())]
    return least[0] if len(least) == 1 and len(work) > 1 else None
