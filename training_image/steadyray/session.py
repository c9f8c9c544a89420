"""Where a training process gets its place in the group from, and whom it tells about its steps.

`steadyray.generations` asks the session of its process. Under `steadyray.run` that is the member actor's
(member.py); under torchrun, or in one plain process, it is the LocalSession of this module.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Protocol

from steadyray import contract
from steadyray.checkpoint import load_newest
from steadyray.messages import Settings
from steadyray.rundir import own_attempt
from steadyray.state import State


@dataclass(frozen=True, slots=True)
class Place:
    """This process's part in one generation."""

    generation: int = 1
    rank: int = 0
    world_size: int = 1
    local: bool = True
    """Whether the process group belongs to the launcher (torchrun) and not to us."""


class Session(Protocol):
    settings: Settings

    def join(self, state: State) -> Place | None:
        """Wait for a place in the next generation, `state` brought up to date; None: training is over."""

    def begin_step(self, step: int) -> None:
        """Called before each step; raises GroupLeft where this rank is to leave its generation."""

    def stage(self, name: str) -> None: ...

    def committed(self, step: int, loss: float | None, samples: int, metrics: dict[str, float]) -> None: ...

    def phase(self, name: str | None, patience: float, recorded: bool = True) -> None:
        """A named piece of work begins, or (None) ends; `recorded` ones are in the ledger."""

    def check_group(self) -> None:
        """Raises GroupLeft where the driver has aborted the group: what was reduced last is then in doubt."""

    def left(self, error: BaseException | None, state: State) -> None:
        """The generation ended for this rank: by a lost peer, or by reaching its end (`error` is None)."""

    def saved_checkpoint(self, **data: object) -> None: ...

    def last_checkpoint(self) -> tuple[str | None, int, float]:
        """The newest checkpoint of this lineage: id, step, and the monotonic time its age counts from."""

    def must_save(self) -> bool:
        """Whether the state is to be saved when this rank leaves, because no other rank stays."""

    def is_ending(self) -> bool:
        """Whether the group will soon lose a rank that nobody replaces, so that it saves often until then."""

    def total_steps(self, total: int) -> None: ...


class LocalSession:
    """One process, or the ranks that torchrun started: one generation, checkpoints, no recovery inside."""

    def __init__(self, settings: Settings | None = None) -> None:
        root = os.environ.get(contract.ENV_RUN_DIR) or None
        self.settings = settings or Settings(root, own_attempt(root))
        self._joined = False
        self._parent: str | None = None
        self._checkpoint_step = 0
        self._total: int | None = None

    def join(self, state: State) -> Place | None:
        if self._joined:
            return None
        self._joined = True
        place = Place(rank=_env("RANK", 0), world_size=_env("WORLD_SIZE", 1))
        if place.rank == 0:  # the others get its state when they meet
            self._load(state)
        return place

    def _load(self, state: State) -> None:
        loaded = load_newest(self.settings.root) if self.settings.root else None
        if loaded is None:
            return
        for name, reason in loaded.set_aside:
            print(f"steadyray: checkpoint {name} is bad and was set aside: {reason}", flush=True)
        for name, reason in loaded.unreadable:
            print(f"steadyray: passed over checkpoint {name}, which cannot be read: {reason}", flush=True)
        state.load_state_dict(loaded.state)
        self._parent, self._checkpoint_step = loaded.id, state.step

    def begin_step(self, step: int) -> None: ...

    def stage(self, name: str) -> None: ...

    def committed(self, step: int, loss: float | None, samples: int, metrics: dict[str, float]) -> None:
        from steadyray import progress

        progress.step(step, total=self._total, loss=loss, **metrics)

    def check_group(self) -> None: ...

    def phase(self, name: str | None, patience: float, recorded: bool = True) -> None:
        from steadyray import progress

        progress.enter(name or progress.TRAIN)

    def left(self, error: BaseException | None, state: State) -> None:
        if error is not None:
            raise error

    def saved_checkpoint(self, **data: object) -> None:
        if "id" in data:
            self._parent, self._checkpoint_step = str(data["id"]), int(str(data["step"]))
        else:
            print(f"steadyray: {data['error']}", flush=True)

    def last_checkpoint(self) -> tuple[str | None, int, float]:
        return self._parent, self._checkpoint_step, time.monotonic()

    def must_save(self) -> bool:
        return False

    def is_ending(self) -> bool:
        return False

    def total_steps(self, total: int) -> None:
        self._total = total


def _env(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


_current: Session | None = None


def current() -> Session:
    global _current
    if _current is None:
        _current = LocalSession()
    return _current


def set_current(session: Session | None) -> None:
    global _current
    _current = session
