"""The Ray actor around one member of the group.

The driver makes it, and the driver is small: nothing here imports torch before the actor's own process runs.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray

from steadyray.messages import Assignment, Report, Settings

Train = Callable[[Any], Mapping[str, Any] | None]

ORPHAN_SECONDS = 120.0
"""A member whose driver has not asked for this long ends itself: it cannot be reached, or nobody is left."""


class Member:
    """The actor around a MemberSession; group.py makes it with `ray.remote`."""

    def __init__(self, settings: Settings) -> None:
        import torch

        from steadyray import session
        from steadyray.member import MemberSession

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
        self._session = MemberSession(settings, ray.util.get_node_ip_address())
        session.set_current(self._session)
        signal.signal(signal.SIGTERM, self._session.on_terminate)
        threading.Thread(target=self._watch_driver, name="steadyray-orphan", daemon=True).start()

    def start(self, train: Train, config: Any) -> dict[str, Any]:
        """Begin the user's training; it runs up to `generations()` and waits there for a place."""
        import torch

        threading.Thread(target=self._run, args=(train, config), name="steadyray-train", daemon=True).start()
        node = ray.get_runtime_context().get_node_id()
        cuda = torch.cuda.is_available()
        return {"pid": os.getpid(), "host": socket.gethostname(), "node": node, "cuda": cuda}

    def _run(self, train: Train, config: Any) -> None:
        import torch

        torch.manual_seed(self._session.settings.seed)
        try:
            self._session.returned(_sendable(train(config)))
        except BaseException as error:  # noqa: BLE001  SystemExit in a thread would vanish without a word
            self._session.raised(error)

    def poll(self, wait: float) -> Report:
        return self._session.poll(wait)

    def offer_store(self, generation: int) -> tuple[str, int]:
        return self._session.offer_store(generation)

    def assign(self, assignment: Assignment) -> None:
        self._session.assign(assignment)

    def leave(self, generation: int, now: bool, save: bool) -> None:
        self._session.leave(generation, now, save)

    def save_often(self, generation: int) -> None:
        self._session.save_often(generation)

    def end(self) -> None:
        self._session.end()

    def stacks(self) -> str:
        """Stacks of all threads of this process, for a rank that still answers."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def _watch_driver(self) -> None:
        while self._session.unheard_seconds < ORPHAN_SECONDS:
            threading.Event().wait(ORPHAN_SECONDS / 10)
        print("steadyray: no word from the driver, leaving", file=sys.stderr, flush=True)
        os._exit(1)


def _sendable(result: Any) -> Mapping[str, Any] | None:
    """What `train` returned; raises TypeError here, where it counts as the user's, and not on the way."""
    if not isinstance(result, Mapping | None):
        raise TypeError(f"train must return a dict or None, not {type(result).__name__}")
    try:
        ray.cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(
            f"what train returned cannot be sent to the driver: {error}. Return numbers and texts"
        ) from error
    return result
