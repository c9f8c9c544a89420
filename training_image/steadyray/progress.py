"""Reports for scripts that keep their own launcher: one call a step, on every rank.

    from steadyray import progress
    progress.step(n, loss=loss.item())
    with progress.phase("eval"):
        ...

Works under torchrun, Accelerate and Ray Train. It never raises and writes at most about once a second;
outside a run of Steadyray it does nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from steadyray import contract
from steadyray.folder import write_atomic
from steadyray.rundir import RunWriter, encode

WRITE_SECONDS = 1.0
TRAIN = "train"
"""The phase in which steps are expected."""


class _Reporter:
    def __init__(self) -> None:
        root = os.environ.get(contract.ENV_RUN_DIR)
        self.root = root or None
        self.attempt = int(os.environ.get(contract.ENV_ATTEMPT) or "1")
        self.rank = int(os.environ.get("RANK") or "0")
        self.world_size = int(os.environ.get("WORLD_SIZE") or "1")
        self.phase = TRAIN
        self.last: contract.Progress | None = None
        self._written = 0.0
        self._writer: RunWriter | None = None
        self._previous: tuple[int, float] | None = None

    def place(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def step(self, step: int, total: int | None, loss: float | None, metrics: dict[str, float]) -> None:
        now = time.time()
        seconds = None
        if self._previous is not None and step > self._previous[0]:
            seconds = (now - self._previous[1]) / (step - self._previous[0])
        self._previous = (step, now)
        self.last = contract.Progress(
            step=step, total_steps=total, loss=loss, metrics=metrics, world_size=self.world_size,
            attempt=self.attempt, phase=self.phase, step_seconds=seconds, time=now,
        )  # fmt: skip
        self.write(force=total is not None and step >= total)

    def write(self, force: bool = False) -> None:
        if self.root is None or not (force or time.monotonic() - self._written >= WRITE_SECONDS):
            return
        self._written = time.monotonic()
        now = time.time()
        step = self.last.step if self.last else 0
        status = contract.RankStatus(
            rank=self.rank, step=step, phase=self.phase, host=socket.gethostname(), pid=os.getpid(), time=now
        )
        records: list[tuple[str, contract.Record]] = []
        records.append((contract.rank_progress(self.attempt, self.rank), status))
        if self.rank == 0 and self.last is not None:
            records.append((contract.progress(self.attempt), self.last))
        self._store(records)

    def _store(self, records: list[tuple[str, contract.Record]]) -> None:
        """A bucket may take seconds to answer, so it is written to beside the training."""
        assert self.root is not None
        if "://" in self.root:
            if self._writer is None:
                self._writer = RunWriter(self.root, self.attempt)
                atexit.register(self._writer.close)
            for key, record in records:
                self._writer.record(key, record)
            return
        for key, record in records:
            write_atomic(Path(self.root) / key, encode(record))


_reporter: _Reporter | None = None


def _get() -> _Reporter:
    global _reporter
    if _reporter is None:
        _reporter = _Reporter()
        # Under Ray Train the ranks are not in the environment but in its context.
        with contextlib.suppress(Exception):
            if "RANK" not in os.environ and "RAY_JOB_ID" in os.environ:
                import ray.train

                context = ray.train.get_context()
                _reporter.place(context.get_world_rank(), context.get_world_size())
    return _reporter


def step(step: int, *, total: int | None = None, loss: float | None = None, **metrics: float) -> None:
    """Say that `step` steps are finished. `loss` and `metrics` are shown as they are."""
    with contextlib.suppress(Exception):
        plain = {name: float(value) for name, value in metrics.items()}
        whole = None if total is None else int(total)
        _get().step(int(step), whole, None if loss is None else float(loss), plain)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Work between steps, such as evaluation, that must not be taken for a hang."""
    enter(name)
    try:
        yield
    finally:
        enter(TRAIN)


def enter(name: str) -> None:
    with contextlib.suppress(Exception):
        reporter = _get()
        reporter.phase = name
        if reporter.last is not None:
            import dataclasses

            reporter.last = dataclasses.replace(reporter.last, phase=name, time=time.time())
        reporter.write(force=True)
