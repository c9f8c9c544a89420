"""Which of this machine's GPUs a local node sees: each its own, since Ray counts from 0 on every node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
NVIDIA = Path("/proc/driver/nvidia/gpus")
"""One folder a GPU, from NVIDIA's kernel driver; where it is missing, GPUs are a number that Ray counts."""


def devices(environment: Mapping[str, str], driver: Path = NVIDIA) -> list[str]:
    """Names of the GPUs that the caller may use, as in CUDA_VISIBLE_DEVICES; empty where there are none."""
    if (chosen := environment.get(VISIBLE)) is not None:
        return [name for part in chosen.split(",") if (name := part.strip())]
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found = list(driver.iterdir())
    return [str(number) for number in range(len(found))]


def share(there: Iterable[str], taken: Iterable[str], wanted: int) -> tuple[str, ...]:
    """The first `wanted` ones that no other node has; none at all where too few are left."""
    held = set(taken)
    free = [name for name in there if name not in held]
    return tuple(free[:wanted]) if len(free) >= wanted else ()
