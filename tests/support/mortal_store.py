"""A store whose writer ends in the middle of its work, for the tests of what a crash leaves."""

from __future__ import annotations

from dataclasses import dataclass

from ops.adapters.fakes import MemoryStore


class Killed(BaseException):
    """The writer's process ends here, as by SIGKILL."""


@dataclass
class MortalStore(MemoryStore):
    """Ends its writer where the fuse burns out; each write burns it twice, before and after it is done."""

    fuse: int = -1
    main: MortalStore | None = None
    """Whose fuse this one burns, where a supervisor writes to several."""
    ends_by: type[BaseException] = Killed

    def _burn(self) -> None:
        lit = self.main or self
        lit.fuse -= 1
        if lit.fuse == 0:
            raise lit.ends_by

    def create(self, path: str, data: bytes) -> bool:
        self._burn()
        made = super().create(path, data)
        self._burn()
        return made

    def put(self, path: str, data: bytes) -> None:
        self._burn()
        super().put(path, data)
        self._burn()

    def delete(self, path: str) -> None:
        self._burn()
        super().delete(path)
        self._burn()
