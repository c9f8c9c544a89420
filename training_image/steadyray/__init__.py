"""PyTorch training on Ray that survives lost workers, nodes and heads without redoing a step.

`import steadyray` is cheap: torch and Ray are imported with the names that need them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyray import progress as progress
    from steadyray.generation import Generation as Generation
    from steadyray.generation import Step as Step
    from steadyray.generation import generations as generations
    from steadyray.launch import run as run
    from steadyray.recovery import Patience as Patience
    from steadyray.sampler import Sampler as Sampler
    from steadyray.state import State as State

_HOMES = {
    "Generation": "generation",
    "Step": "generation",
    "generations": "generation",
    "run": "launch",
    "Patience": "recovery",
    "Sampler": "sampler",
    "State": "state",
}
__all__ = ["Generation", "Patience", "Sampler", "State", "Step", "generations", "progress", "run"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "progress":
        return importlib.import_module("steadyray.progress")
    if name not in _HOMES:
        raise AttributeError(f"module 'steadyray' has no attribute {name!r}")
    return getattr(importlib.import_module(f"steadyray.{_HOMES[name]}"), name)
