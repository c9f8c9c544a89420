"""The results so far: one JSON line each, appended as soon as it is there, so that a second run goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RECOVERED, NEVER, OVER = "recovered", "never", "over"
MEASURED, BROKEN = "measured", "broken"


@dataclass(frozen=True)
class Row:
    """One measurement. `values` are numbers by name; seconds, steps, MiB or steps a second."""

    section: str
    system: str
    case: str
    outcome: str
    values: dict[str, float] = field(default_factory=dict)
    time: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Results:
    """A file of rows, and of what is known of the machine: the newest such line counts."""

    path: Path

    def rows(self) -> list[Row]:
        return [Row(**line) for line in self._lines() if "section" in line]

    def machine(self) -> dict[str, Any]:
        found = [line["machine"] for line in self._lines() if "machine" in line]
        return dict(found[-1]) if found else {}

    def add(self, row: Row) -> None:
        self._append(asdict(row))

    def add_machine(self, machine: dict[str, Any]) -> None:
        if machine != self.machine():
            self._append({"machine": machine})

    def _append(self, data: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(data) + "\n")

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines() if line]
