"""Steps a second of one loop, two ranks on this machine: with this library on Ray, and under torchrun.

The cluster runs in both cases, and its head costs both the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from ops.adapters.local_cluster import ClusterConnection
from ops.bench import desk, plan
from ops.bench.desk import Broken, wait_for
from ops.bench.results import MEASURED, Row

NODES = 2
TORCHRUN_SECONDS = 300.0


def measure(at: ClusterConnection, system: str, case: str, folder: Path) -> Row:
    """Raises Broken when the loop does not come to its end."""
    rate = _ours(at, folder) if system == plan.OURS else _torchrun(folder, system == plan.TORCHRUN)
    return Row(plan.THROUGHPUT, system, case, MEASURED, {"steps_per_second": rate}, time.time())


def _ours(at: ClusterConnection, folder: Path) -> float:
    """As a plain job: the supervisor's place is another machine. The run directory is written too."""
    desk.wait_for_nodes(at, NODES)
    variables = {"STEADYRAY_RUN_DIR": str(folder / "run")}
    training = desk.submitted(at, folder, "python", "throughput_steadyray.py", environment=variables)
    try:
        return wait_for(training.result, "the end of the loop", TORCHRUN_SECONDS)
    finally:
        training.close()


def _torchrun(folder: Path, with_loss: bool) -> float:
    folder.mkdir(parents=True)
    script = str(desk.SCRIPTS / "throughput_ddp.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    command += ["--loss"] if with_loss else []
    done = subprocess.run(
        command,
        env={**os.environ, "BENCH_FOLDER": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TORCHRUN_SECONDS,
    )
    if done.returncode:
        raise Broken(f"torchrun ended with {done.returncode}: {done.stderr[-300:]}")
    return float((folder / "result").read_text().split()[1])
