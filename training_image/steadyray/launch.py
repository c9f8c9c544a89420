"""`steadyray.run`: train with a group of ranks on Ray that recovers inside the job.

Called in the driver of a Ray job. The driver needs no torch: it is small, and its ranks end with it.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray

from steadyray import contract
from steadyray.folder import Folder
from steadyray.recovery import Patience
from steadyray.rundir import RunWriter, own_attempt
from steadyray.storage import open_storage, probe

if TYPE_CHECKING:
    from steadyray.actor import Train

CAPACITY_SECONDS = 300.0
"""Without a supervisor: how long a group below its smallest size waits for new members."""


def run(
    train: Train,
    config: Any = None,
    *,
    workers: int | tuple[int, int] = 1,
    spares: int = 0,
    storage: str | os.PathLike[str] | None = None,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float = 0.0,
    threads_per_worker: int = 1,
    spare_capacity: bool = False,
    backend: str | None = None,
    seed: int = 0,
    checkpoint_seconds: float | None = 30.0,
    checkpoint_steps: int | None = None,
    patience: Patience | None = None,
) -> dict[str, Any]:
    """Run `train(config)` on every rank until all steps are done; returns what rank 0's call returned.

    `workers` is the world size, or its smallest and largest value: below the largest the training goes on
    with fewer ranks and grows back. `spares` are warm processes that hold no CPU or GPU until they become a
    rank, unless `spare_capacity` is set. `storage` is the run directory, a folder that all nodes share or a
    bucket's URL; by default that of the supervised run ($STEADYRAY_RUN_DIR). Without one there are no
    checkpoints. All options are in a table of docs/training.md.

    Raises steadyray.group.TrainingFailed when it cannot go on inside this job; its `failure` says why.
    """
    from steadyray.chronicle import Chronicle
    from steadyray.group import Controller, Plan, TrainingFailed
    from steadyray.members import Members, Shape
    from steadyray.messages import Settings

    smallest, largest = (workers, workers) if isinstance(workers, int) else workers
    if not 1 <= smallest <= largest:
        raise ValueError(f"workers={workers}: need 1 <= smallest <= largest world size")
    if gpus_per_worker and spares and not spare_capacity:
        raise ValueError("a spare for GPU ranks needs a GPU of its own: set spare_capacity=True or spares=0")
    _check_numbers(
        spares=(spares, 0), cpus_per_worker=(cpus_per_worker, 0), gpus_per_worker=(gpus_per_worker, 0),
        threads_per_worker=(threads_per_worker, 1), checkpoint_seconds=(checkpoint_seconds, 0),
        checkpoint_steps=(checkpoint_steps, 1),
    )  # fmt: skip
    _check_picklable(train, config)
    root = _root(storage)
    attempt = own_attempt(root)
    if not ray.is_initialized():
        ray.init()
    writer = RunWriter(root, attempt)
    chronicle = Chronicle(writer)
    settings = Settings(root, attempt, seed, checkpoint_seconds, checkpoint_steps)
    shape = Shape(cpus_per_worker, gpus_per_worker, spare_capacity, threads_per_worker)
    plan = Plan(smallest, largest, spares, backend, _patience(patience or Patience()))
    chronicle.started(
        ray.get_runtime_context().get_node_id(), socket.gethostname(), (smallest, largest), spares
    )
    members = Members(train, config, settings, shape)
    try:
        return Controller(plan, members, chronicle).run()
    except TrainingFailed as error:
        writer.failure(error.failure)
        raise
    finally:
        members.close()
        writer.close()


def _patience(given: Patience) -> Patience:
    """Under the supervisor the wait for capacity is its business: it knows the run's --wait-limit."""
    if given.capacity is not None or os.environ.get(contract.ENV_RUN):
        return given
    return replace(given, capacity=CAPACITY_SECONDS)


def _check_numbers(**given: tuple[float | None, int]) -> None:
    """Value and smallest sensible value, by option; None switches an option off."""
    for name, (value, least) in given.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name}={value}: must be at least {least}")


def _check_picklable(train: Train, config: Any) -> None:
    try:
        ray.cloudpickle.dumps((train, config))
    except Exception as error:
        raise TypeError(
            f"train and config must be picklable to reach the ranks: {error}. Make locks, files, loaders and "
            "connections inside train"
        ) from error


def _root(storage: str | os.PathLike[str] | None) -> str | None:
    """Absolute, or a URL. Raises ValueError for a URL of nothing that we can use, OSError where it fails."""
    named = os.fspath(storage) if storage is not None else os.environ.get(contract.ENV_RUN_DIR)
    if not named:
        return None
    opened = open_storage(named)
    if isinstance(opened, Folder):
        opened.root.mkdir(parents=True, exist_ok=True)
    else:
        probe(opened)
    return opened.url
