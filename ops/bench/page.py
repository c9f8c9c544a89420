"""docs/benchmarks.md from the results so far. Pure: the same rows give the same page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from ops.bench import plan
from ops.bench.results import BROKEN, NEVER, OVER, RECOVERED, Row

COMMAND = "make bench-quick"
PEER_PART, HANG_SECONDS, START_RATIO, SPEED_RATIO, MEMORY_RATIO, PEAK_MIB = 0.2, 6.0, 1.3, 0.95, 1.1, 6144
"""Targets of issue 3; a hang is found after max(5 s, 10 median steps), and one second is for the rest."""

INTRO = """\
<!-- Made by `{command}` (ops/bench/page.py) from docs/benchmarks.jsonl. Do not edit. -->
# Benchmarks

Each number is a median, with the smallest and largest value and how often it was measured (n). What was
measured when is shuffled in rounds, so that the machine's other work hits all alike.

{machine}

Again: `{command}`. It goes on where docs/benchmarks.jsonl ends; delete that file to start anew.
"""

RECOVERY = """\
## From a fault to the first new step

Two ranks on three nodes of one CPU each, on one cluster for all; 0.3 M parameters, 50 ms of work a step. A
new step is one above the highest that was finished before the fault (the step in flight, 50 ms, counts as
finished). A checkpoint is written every 20 steps, about once a second, so a peer has at most that to redo.
"Ray Train, tuned" and torchft: health checks every 0.5 s and up to 15 s, 10 s to start a group, 20 s for a
collective (torchft: 30 s, as in Ray's example, and both replicas as the minimum). All profit from this
cluster's own failure detection: a lost node is seen after 2 to 3 s, where Ray's default is 14 s.

*Never*: the job ended as FAILED. *Over*: no new step within the cut ({cut} s). Head lost: the training need
not stop, so this is its longest pause from the loss of the GCS until 10 s after the head is back. This
library runs under `steadyray job run`, the peers as plain jobs; all drivers are on a worker node.
Measured fewer times, since slow and always the same: {caps}.
"""

ROLES = {
    plan.START: """\
## From nothing to the first training step

Two workers, one head, the same script. `cluster up` and `job run`, against `ray start` for a head and then
for both workers side by side, and the Jobs API.
""",
    plan.THROUGHPUT: """\
## Throughput

1.6 M parameters, 64 samples a rank, two ranks with one thread each, 800 steps after 100. Started as a plain
job (no supervisor on this machine), with the run directory written as always; against DDP under torchrun.
In this library's loop every rank knows the loss of each global batch, by a small all-reduce beside the
gradients; torchrun's loop does the same. The target is judged against that loop and against one without
the all-reduce ("no loss"), in which a rank knows its own share at most.
""",
    plan.MEMORY: """\
## Memory (PSS)

A head and two idle worker nodes once their memory no longer changes; the keeper is counted. Supervisor and
spare are measured while two ranks train. The peak is the largest sum over the whole of `make demo` with its
four faults: the command, keeper, head, all nodes, drivers, ranks and spares.
""",
}


def render_page(rows: Sequence[Row], machine: dict[str, Any], cut_seconds: float) -> str:
    sections = [
        INTRO.format(command=COMMAND, machine=_machine(rows, machine)),
        RECOVERY.format(cut=f"{cut_seconds:g}", caps=_caps()),
        _recovery_table(rows),
        _redone_table(rows),
        _recovery_targets(rows),
        ROLES[plan.START],
        _single(rows, plan.START, "to first step", "seconds", "s"),
        _ratio(rows, plan.START, "to first step", "seconds", plan.RAY_START, START_RATIO, at_most=True),
        ROLES[plan.THROUGHPUT],
        _single(rows, plan.THROUGHPUT, "steps a second", "steps_per_second", "steps/s"),
        _speed_ratio(rows, plan.TORCHRUN),
        _speed_ratio(rows, plan.TORCHRUN_BLIND),
        ROLES[plan.MEMORY],
        _single(rows, plan.MEMORY, "idle", "mib", "MiB"),
        _ratio(rows, plan.MEMORY, "idle", "mib", plan.RAY_START, MEMORY_RATIO, at_most=True),
        _extras(rows),
        _broken(rows),
    ]
    return "\n".join(section for section in sections if section)


def _machine(rows: Sequence[Row], machine: dict[str, Any]) -> str:
    days = sorted({datetime.fromtimestamp(row.time, UTC).date().isoformat() for row in rows})
    when = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not measured yet"
    facts = {"date": when, "command": f"`{COMMAND}`", **machine}
    return table(("", ""), [(name, str(value)) for name, value in facts.items()])


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    made = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in made) + "\n"


def spread(values: Sequence[float], number: Callable[[float], str]) -> str:
    """`median (smallest to largest, n=5)`."""
    if not values:
        return "not measured"
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))}, n={len(values)})"


def plain(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def whole(value: float) -> str:
    return f"{value:g}"


def of(rows: Iterable[Row], section: str, system: str, case: str) -> list[Row]:
    key = (section, system, case)
    return [row for row in rows if (row.section, row.system, row.case) == key and row.outcome != BROKEN]


def values(rows: Iterable[Row], section: str, system: str, case: str, name: str) -> list[float]:
    return [row.values[name] for row in of(rows, section, system, case) if name in row.values]


# --- recovery ----------------------------------------------------------------------------------------
def _recovery_table(rows: Sequence[Row]) -> str:
    head = ("seconds", *plan.SYSTEMS)
    lines = [[fault, *(_seconds(rows, system, fault) for system in plan.SYSTEMS)] for fault in plan.FAULTS]
    return table(head, lines)


def _redone_table(rows: Sequence[Row]) -> str:
    lines = [
        [
            fault,
            *(
                spread(values(rows, plan.RECOVERY, system, fault, "steps_redone"), whole)
                for system in plan.SYSTEMS
            ),
        ]
        for fault in plan.FAULTS
    ]
    return table(("steps redone", *plan.SYSTEMS), lines)


def _seconds(rows: Sequence[Row], system: str, fault: str) -> str:
    """The spread of those that recovered, and how many did not."""
    found = of(rows, plan.RECOVERY, system, fault)
    recovered = [row.values["seconds"] for row in found if row.outcome == RECOVERED]
    words = [spread(recovered, plain)] if recovered or not found else []
    for outcome in (NEVER, OVER):
        if count := sum(row.outcome == outcome for row in found):
            words.append(f"{outcome} (n={count})")
    return ", ".join(words)


def typical(rows: Sequence[Row], system: str, fault: str) -> float | None:
    """The median where most repetitions recovered; what did not counts as infinitely long."""
    found = of(rows, plan.RECOVERY, system, fault)
    times = [row.values["seconds"] if row.outcome == RECOVERED else float("inf") for row in found]
    return median(times) if times else None


def _recovery_targets(rows: Sequence[Row]) -> str:
    lines = []
    for fault in (plan.KILLED, plan.NODE):
        mine = typical(rows, plan.OURS, fault)
        peers = [t for peer in plan.PEERS if (t := typical(rows, peer, fault)) is not None]
        if mine is None or not peers:
            continue
        wanted = f"at most {PEER_PART}"
        part = mine / min(peers)  # not a number where nobody recovered, which is no target met
        found, verdict = _verdict(part, part <= PEER_PART)
        lines.append(
            (
                f"{fault}: part of the best peer",
                wanted,
                "no peer recovered" if min(peers) == float("inf") else found,
                verdict,
            )
        )
    if (hang := typical(rows, plan.OURS, plan.HUNG)) is not None:
        lines.append(
            ("rank hung: seconds", f"at most {HANG_SECONDS:g}", *_verdict(hang, hang <= HANG_SECONDS))
        )
    redone = [
        n
        for fault in (plan.KILLED, plan.NODE, plan.HUNG)
        for n in values(rows, plan.RECOVERY, plan.OURS, fault, "steps_redone")
    ]
    if redone:
        lines.append(("steps redone, largest of all", "0", *_verdict(max(redone), max(redone) == 0)))
    return table(("target", "wanted", "found", ""), lines) if lines else ""


def _verdict(found: float, met: bool) -> tuple[str, str]:
    return plain(found), "met" if met else "**missed**"


def _caps() -> str:
    return "; ".join(f"{system}, {case}: {count}" for (system, case), count in plan.CAPS.items())


# --- the rest ----------------------------------------------------------------------------------------
def _single(rows: Sequence[Row], section: str, case: str, name: str, unit: str) -> str:
    systems = [system for system, of_case in plan.CASES[section] if of_case == case]
    lines = [(system, spread(values(rows, section, system, case, name), plain)) for system in systems]
    return table(("", unit), lines)


def _speed_ratio(rows: Sequence[Row], peer: str) -> str:
    return _ratio(
        rows, plan.THROUGHPUT, "steps a second", "steps_per_second", peer, SPEED_RATIO, at_most=False
    )


def _ratio(
    rows: Sequence[Row], section: str, case: str, name: str, peer: str, target: float, *, at_most: bool
) -> str:
    mine, theirs = (values(rows, section, system, case, name) for system in (plan.OURS, peer))
    if not mine or not theirs:
        return ""
    ratio = median(mine) / median(theirs)
    met = ratio <= target if at_most else ratio >= target
    wanted = f"{'at most' if at_most else 'at least'} {target:g}"
    return table(
        ("target", "wanted", "found", ""), [(f"medians, against {peer}", wanted, *_verdict(ratio, met))]
    )


def _extras(rows: Sequence[Row]) -> str:
    names = {
        "the supervisor (`job run`) adds": ("training", "supervisor_mib"),
        "a warm spare adds": ("training", "spare_mib"),
        f"peak of the demonstration (at most {PEAK_MIB})": ("demo", "peak_mib"),
    }
    return table(
        ("", "MiB"),
        [
            (words, spread(values(rows, plan.MEMORY, plan.OURS, case, name), plain))
            for words, (case, name) in names.items()
        ],
    )


def _broken(rows: Sequence[Row]) -> str:
    """Measurements that could not be made are counted here and nowhere else."""
    count = sum(row.outcome == BROKEN for row in rows)
    return (
        f"Measurements that could not be made (see the notes in docs/benchmarks.jsonl): {count}.\n"
        if count
        else ""
    )
