"""What is measured, how often, and in which order. Pure: the same results so far give the same next thing.

Rounds make every prefix balanced: nothing is measured for the third time before all else was measured twice.
Within a round the order is shuffled by the seed, so that what the machine does meanwhile hits all alike.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ops.bench.results import Row

RECOVERY, START, THROUGHPUT, MEMORY = "recovery", "start", "throughput", "memory"
SECTIONS = (START, THROUGHPUT, MEMORY, RECOVERY)
"""In the order of `quick`: the short ones first, then what takes all the time there is."""

OURS, OURS_BARE = "steadyray", "steadyray, no spare"
DEFAULT, TUNED, TORCHFT = "Ray Train", "Ray Train, tuned", "Ray Train with torchft"
SYSTEMS = (OURS, OURS_BARE, DEFAULT, TUNED, TORCHFT)
PEERS = (DEFAULT, TUNED, TORCHFT)

KILLED, NODE, HUNG, HEAD, DRIVER = (
    "worker killed",
    "node lost",
    "rank hung",
    "head lost",
    "driver's node lost",
)
FAULTS = (KILLED, NODE, HUNG, HEAD, DRIVER)

RAY_START = "bare ray start"
TORCHRUN, TORCHRUN_BLIND = "torchrun", "torchrun, no loss"
CASES = {
    RECOVERY: tuple((system, fault) for system in SYSTEMS for fault in FAULTS),
    START: ((OURS, "to first step"), (RAY_START, "to first step")),
    THROUGHPUT: tuple((system, "steps a second") for system in (OURS, TORCHRUN, TORCHRUN_BLIND)),
    MEMORY: ((OURS, "idle"), (RAY_START, "idle"), (OURS, "training"), (OURS, "demo")),
}

CAPS = {
    (DEFAULT, HUNG): 1,  # waits out the whole cut each time: its own time-out is 30 minutes
    **{(peer, DRIVER): 2 for peer in PEERS},  # the job fails for good, which a third time would not change
}
"""Repetitions at most, for what is slow and does not vary."""


class Unit(NamedTuple):
    """The next thing to do: in recovery several faults of one training, else a single case."""

    section: str
    system: str
    cases: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    repetitions: int
    seed: int = 1

    def wanted(self, system: str, case: str) -> int:
        return min(self.repetitions, CAPS.get((system, case), self.repetitions))

    def next(self, section: str, rows: Iterable[Row]) -> Unit | None:
        """None when all that is wanted of a section has been measured."""
        done = Counter((row.system, row.case) for row in rows if row.section == section)
        for number in range(self.repetitions):
            missing = [
                pair for pair in CASES[section] if done[pair] <= number and number < self.wanted(*pair)
            ]
            if missing:
                return self._unit(section, number, missing)
        return None

    def _unit(self, section: str, number: int, missing: list[tuple[str, str]]) -> Unit:
        chance = random.Random(f"{self.seed} {section} {number}")
        pairs = list(CASES[section])
        chance.shuffle(pairs)
        order = [pair for pair in pairs if pair in missing]
        system = order[0][0]
        cases = [case for of, case in order if of == system]
        if section != RECOVERY:
            return Unit(section, system, (cases[0],))
        # Last, since it ends a peer's job for good, and hangs before it, which may end it as well.
        return Unit(section, system, tuple(sorted(cases, key=lambda case: (case == DRIVER, case == HUNG))))
