"""What Ray Train tells of a training, for scripts that know nothing of us: `RAY_TRAIN_CALLBACKS` loads it.

The supervisor ships this file with each job and names it there. Ray Train (V2, from 2.49 on) then calls it in
its controller: reports become the run's progress, and the exceptions of its workers are kept by rank, also
those that Ray Train itself will try again. Ray's module is private and may change, and a callback that cannot
be loaded or raises would end the training: whatever fails here is said once and forgotten.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import numbers
import os
import statistics
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import contract  # relative: the folder this is shipped in has another name
from .hiding import hide

try:
    from ray.train.v2._internal.execution.callback import ReportCallback, WorkerGroupCallback

    BASES: tuple[type, ...] = (ReportCallback, WorkerGroupCallback)
except ImportError:  # another version: then it only has to be loadable
    from ray.train.v2.api.callback import RayTrainCallback

    BASES = (RayTrainCallback,)

WRITE_SECONDS = 1.0
STEP_NAMES = ("step", "global_step", "training_iteration", "iteration", "epoch")
LOSS_NAMES = ("loss", "train_loss", "training_loss")
KEPT_EXCEPTIONS = 20
"""The newest ones; a script that Ray Train starts for ever must not fill the storage."""


def never_raises(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def call(self: TrainCallback, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  the training must go on, whatever this is
            if not self.complained:
                print(f"steadyray: {method.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
            self.complained = True

    return call


class TrainCallback(*BASES):  # type: ignore[misc]
    """Made in the driver and sent to Ray Train's controller, which has the same environment."""

    def __init__(self) -> None:
        self.complained = False
        self.reports = 0
        self.step = 0
        self.world_size = 1
        self.generation = 0
        self.checkpoints = 0
        self.exceptions: deque[dict[str, Any]] = deque(maxlen=KEPT_EXCEPTIONS)
        self.times: deque[float] = deque(maxlen=51)
        self.written = 0.0

    # --- called by Ray Train ----------------------------------------------------------------------
    @never_raises
    def after_worker_group_start(self, worker_group: Any) -> None:
        self.world_size = len(worker_group.get_workers())
        self.generation += 1
        self.times.clear()

    @never_raises
    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        self.reports += 1
        self.times.append(time.time())
        if getattr(training_report, "checkpoint", None) is not None:
            self.checkpoints += 1
        progress = self._progress(metrics)
        self.step = progress.step
        if time.monotonic() - self.written >= WRITE_SECONDS:
            self.written = time.monotonic()
            self._write(contract.progress(_attempt()), progress.to_json())

    @never_raises
    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        errors = worker_group_status.errors
        if not errors:
            return
        now = time.time()
        self.exceptions.extend(
            {
                "time": now,
                "rank": rank,
                "kind": type(error).__name__,
                "message": hide(str(error))[:2000],
                "traceback": hide("".join(traceback.format_exception(error)))[-8000:],
                "step": self.step,
            }
            for rank, error in sorted(errors.items())
        )
        self._write(
            contract.exceptions(_attempt()),
            {"schema": contract.SCHEMA, "exceptions": list(self.exceptions), "checkpoints": self.checkpoints},
        )

    # --- what is written --------------------------------------------------------------------------
    def _progress(self, metrics: list[dict[str, Any]]) -> contract.Progress:
        first = metrics[0] if metrics else {}
        figures = {str(k): float(v) for k, v in first.items() if _is_number(v)}
        step = next((figures[name] for name in STEP_NAMES if name in figures), float(self.reports))
        gaps = [b - a for a, b in zip(self.times, list(self.times)[1:], strict=False)]
        return contract.Progress(
            step=max(0, int(step)),
            loss=next((figures[name] for name in LOSS_NAMES if name in figures), None),
            metrics=figures,
            world_size=self.world_size,
            generation=max(1, self.generation),
            attempt=_attempt(),
            step_seconds=statistics.median(gaps) if gaps else None,
            time=time.time(),
        )

    def _write(self, path: str, content: dict[str, Any]) -> None:
        root = os.environ.get(contract.ENV_RUN_DIR)
        if not root:
            return
        data = hide(json.dumps(content, default=str)).encode()
        if "://" in root:  # of the library itself, which a job with a bucket has
            importlib.import_module("steadyray.storage").open_storage(root).put(path, data)
            return
        target = Path(root) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.ray-train-{os.getpid()}")
        try:
            partial.write_bytes(data)
            partial.replace(target)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _attempt() -> int:
    return int(os.environ.get(contract.ENV_ATTEMPT) or "1")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
