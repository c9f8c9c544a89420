"""From nothing to the first training step: `cluster up` and `job run`, against `ray start` and a job."""

from __future__ import annotations

import time
from pathlib import Path

from ops.bench import bare, desk, plan
from ops.bench.desk import Broken, Training, wait_for
from ops.bench.results import MEASURED, Row

NODES = 2


def measure(system: str, case: str, folder: Path) -> Row:
    """Raises Broken when no step comes."""
    seconds = _ours(folder) if system == plan.OURS else _bare(folder)
    return Row(plan.START, system, case, MEASURED, {"seconds": seconds}, time.time())


def _ours(folder: Path) -> float:
    began = time.time()
    with desk.cluster(NODES, "bench-start") as at:
        training = desk.supervised(at, folder, "python", "train_steadyray.py", "0")
        try:
            return _first_step(training) - began
        finally:
            training.close()


def _bare(folder: Path) -> float:
    folder.mkdir(parents=True)
    began = time.time()
    with bare.cluster(NODES) as made:
        variables = {"STEADYRAY_RUN_DIR": str(folder / "run")}
        made.submit(folder, "exec python train_steadyray.py 0", variables)
        return _first_step(folder) - began


def _first_step(where: Training | Path) -> float:
    folder = where.folder if isinstance(where, Training) else where
    steps = folder / "steps"

    def first() -> float | None:
        if isinstance(where, Training) and where.failed():
            raise Broken(f"the training ended: {(folder / 'command.log').read_text()[-300:]}")
        return float(steps.read_text().split()[0]) if steps.exists() and steps.stat().st_size else None

    return wait_for(first, "a first step")
