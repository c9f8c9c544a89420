"""Builds event streams of made-up runs for the tests of ledger and report."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadyray import contract
from steadyray.contract import Event

SUPERVISOR = "supervisor-host-1-aaaaaaaa"


@dataclass
class Stream:
    """Events in the order in which they are written; `driver` is that of the current attempt."""

    zero: float = 1_000_000.0
    events: list[Event] = field(default_factory=list)
    attempt: int = 0
    generation: int = 0

    def supervisor(self, time: float, kind: str, *, incident: str = "", **data: Any) -> Stream:
        return self._add(SUPERVISOR, time, kind, 0, incident, data)

    def driver(self, time: float, kind: str, *, incident: str = "", **data: Any) -> Stream:
        return self._add(f"driver-{self.attempt:04d}-bbbbbbbb", time, kind, self.generation, incident, data)

    def _add(
        self, writer: str, time: float, kind: str, generation: int, incident: str, data: dict[str, Any]
    ) -> Stream:
        seq = 1 + sum(e.writer == writer for e in self.events)
        times = ("start", "end", "detected", "fault_time", "last_step_time", "first_new_step_time", "since")
        moved = {k: v + self.zero if k in times and v is not None else v for k, v in data.items()}
        self.events.append(
            Event(self.zero + time, kind, writer, seq, self.attempt, generation, incident, moved)
        )
        return self

    def submitted(self, claimed: float, running: float) -> Stream:
        self.attempt, self.generation = self.attempt + 1, 0
        self.supervisor(claimed, "AttemptClaimed", cluster="local", submission_id=f"run-{self.attempt}")
        self.supervisor(claimed, "AttemptSubmitted", submission_id=f"run-{self.attempt}")
        return self.supervisor(running, "AttemptRunning", driver_node="n1", driver_host="host-1")

    def formed(self, time: float, world_size: int, from_step: int = 0, source: str = "fresh") -> Stream:
        self.generation += 1
        ranks = [{"rank": r, "node": f"n{r}", "host": f"host-{r}", "pid": 10 + r} for r in range(world_size)]
        return self.driver(
            time, "GenerationStarted", world_size=world_size, ranks=ranks, spares=1, from_step=from_step,
            source=source,
        )  # fmt: skip

    def steps(self, start: float, end: float, first: int, last: int, save_seconds: float = 0.0) -> Stream:
        losses = [[step, 2.0 / step] for step in range(first + 1, last + 1)]
        return self.driver(
            end, "StepsDone", start=start, end=end, from_step=first, to_step=last, losses=losses,
            save_seconds=save_seconds,
        )  # fmt: skip

    def finished(self, time: float, state: str = "Succeeded") -> Stream:
        return self.supervisor(time, "RunFinished", state=state, message="")


def eventful() -> Stream:
    """A worker lost and replaced in place, then the driver lost: 48 s, every category but three."""
    s = Stream().supervisor(0, "RunCreated", name="digits", entrypoint="python -m steadyray.run")
    s.submitted(1, 4).driver(5, "DriverStarted", host="host-1")
    s.formed(6, world_size=2).steps(7, 17, 0, 100, save_seconds=1)
    s.driver(17.2, "RankLost", incident="0001-g001", rank=1, host="host-1", detected=17.1,
             failure_class="WorkerCrash", reason="killed by signal 9")  # fmt: skip
    s.formed(17.6, world_size=2, from_step=100, source="peer")
    s.driver(17.9, "Recovered", incident="0001-g001", depth="hot", from_step=100, steps_redone=0,
             seconds_detection=0.1, last_step_time=17, first_new_step_time=17.8)  # fmt: skip
    s.steps(17.7, 27.7, 100, 200)
    s.supervisor(30, "AttemptEnded", status="FAILED", failure_class="DriverLost", step=200)
    s.supervisor(31, "IncidentOpened", incident="s0001-1", failure_class="DriverLost", rule="node-dead",
                 message="node of the driver <script>alert(1)</script> is gone", fault_time=28, step=200,
                 evidence=[{"source": "job", "time": 0.0, "line": "<b>Job failed</b> & gone"}])  # fmt: skip
    s.supervisor(31.5, "ActionTaken", incident="s0001-1", action="Resubmit", reason="DriverLost",
                 message="Submit attempt 2.", depth="new-attempt", budget_left=7)  # fmt: skip
    s.submitted(32, 34).formed(35, world_size=1, from_step=150, source="checkpoint")
    s.steps(36, 46, 150, 250)
    s.driver(46.5, "TrainingFinished", step=250, metrics={"test_accuracy": 0.975}, model="final/model.pt")
    s.supervisor(47, "AttemptEnded", status="SUCCEEDED", step=250)
    return s.finished(48)


def write_run(events: list[Event], root: Path) -> Path:
    """Put the events and what else a run leaves into a run directory."""
    for event in events:
        path = root / contract.event(event.writer, event.seq)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(event.to_json()))
    (root / contract.SPEC).write_text(
        json.dumps({"schema": 1, "entrypoint": "python -m steadyray.run", "recipe": "<i>digits</i>.yaml"})
    )
    log = root / contract.evidence(1, "driver.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(f"step {i} <img src=http://example.com/x.png>" for i in range(100)))
    return root
