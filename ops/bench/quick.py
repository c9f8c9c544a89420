"""`steadyray bench quick`: measures what is missing, section by section, until all is there or time is up."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from ops.bench import desk, memory, plan, recovery, start, throughput
from ops.bench.page import render_page
from ops.bench.results import BROKEN, Results, Row
from ops.config import home
from ops.errors import OpsError

SHARES = {plan.START: 4.0, plan.THROUGHPUT: 4.0, plan.MEMORY: 6.0, plan.RECOVERY: 21.0}
"""How the time is divided among the sections that are still to come; what one leaves goes to the next."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Quick:
    """One invocation. `deadline` is by time.monotonic(); None: until all is there."""

    plan: plan.Plan
    results: Results
    page: Path
    cut_seconds: float
    minutes: float | None
    say: Say

    def run(self, sections: Sequence[str]) -> None:
        """Measure and write the page after each row, so that Ctrl-C loses one measurement at most."""
        self.results.add_machine(machine())
        deadline = time.monotonic() + self.minutes * 60 if self.minutes else None
        with desk.own_home():
            for number, section in enumerate(sections):
                self._section(section, section_deadline(deadline, time.monotonic(), sections[number:]))
        self.write_page()

    def write_page(self) -> None:
        self.page.parent.mkdir(parents=True, exist_ok=True)
        text = render_page(self.results.rows(), self.results.machine(), self.cut_seconds)
        self.page.write_text(text)

    def _section(self, section: str, deadline: float) -> None:
        if self.plan.next(section, self.results.rows()) is None:
            self.say(f"{section}: all there")
            return
        self.say(f"{section}: measuring")
        with MEASURERS[section](self) as measure:
            number = 0
            while time.monotonic() < deadline:
                unit = self.plan.next(section, self.results.rows())
                if unit is None:
                    break
                number += 1
                with contextlib.closing(measure(unit, number)) as rows:
                    for row in rows:
                        self._add(row)
                        if time.monotonic() >= deadline:
                            break

    def _add(self, row: Row) -> None:
        self.results.add(row)
        self.write_page()
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in row.values.items())
        self.say(f"{row.section}: {row.system}: {row.case}: {row.outcome} {numbers}{row.note[:300]}")


def section_deadline(deadline: float | None, now: float, left: Sequence[str]) -> float:
    """When the first of the sections that are left must end, in the seconds of `now`."""
    if deadline is None:
        return float("inf")
    return now + (deadline - now) * SHARES[left[0]] / sum(SHARES[section] for section in left)


# --- what measures a unit of each section -------------------------------------------------------------
Measure = Callable[[plan.Unit, int], Generator[Row, None, None]]


def _folder(section: str, number: int) -> Path:
    """Its name is the run's and the job's too, which must be new each time."""
    return home() / "work" / f"{section}-{os.getpid()}-{number}"


def _one(unit: plan.Unit, number: int, measure: Callable[[Path], Row]) -> Generator[Row, None, None]:
    folder = _folder(unit.section, number)
    try:
        row = measure(folder)
    except OpsError as error:
        row = Row(unit.section, unit.system, unit.cases[0], BROKEN, time=time.time(), note=str(error))
    shutil.rmtree(folder, ignore_errors=True)
    yield row


@contextlib.contextmanager
def _start(quick: Quick) -> Iterator[Measure]:
    yield lambda unit, number: _one(unit, number, lambda f: start.measure(unit.system, unit.cases[0], f))


@contextlib.contextmanager
def _throughput(quick: Quick) -> Iterator[Measure]:
    with desk.cluster(throughput.NODES) as at:
        yield lambda unit, number: _one(
            unit, number, lambda f: throughput.measure(at, unit.system, unit.cases[0], f)
        )


@contextlib.contextmanager
def _memory(quick: Quick) -> Iterator[Measure]:
    yield lambda unit, number: _one(unit, number, lambda f: memory.measure(unit.system, unit.cases[0], f))


@contextlib.contextmanager
def _recovery(quick: Quick) -> Iterator[Measure]:
    with desk.cluster(recovery.NODES) as at:
        measure = recovery.Measure(at, home() / "work", quick.cut_seconds)
        yield lambda unit, number: measure.session(unit.system, unit.cases, number)


MEASURERS: dict[str, Callable[[Quick], contextlib.AbstractContextManager[Measure]]] = {
    plan.START: _start,
    plan.THROUGHPUT: _throughput,
    plan.MEMORY: _memory,
    plan.RECOVERY: _recovery,
}


def machine() -> dict[str, Any]:
    """What a number depends on, for the page."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("ray", "torch", "torchft"))
    return {
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}",
        "cores": psutil.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "backend": "gloo (CPU)",
        "versions": f"Python {platform.python_version()}, {packages}",
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
