"""Where Steadyray keeps what it knows on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from ops.errors import UsageError


def home() -> Path:
    """STEADYRAY_HOME, else `.steadyray` in the checkout around the current folder, else in that folder."""
    if configured := os.environ.get("STEADYRAY_HOME"):
        return Path(configured).expanduser().absolute()
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    return root / ".steadyray"


def runs_root() -> str:
    """STEADYRAY_RUNS (a folder that all nodes see, or a bucket's URL), else `runs` in the home folder."""
    return os.environ.get("STEADYRAY_RUNS") or str(home() / "runs")


def check_mode() -> None:
    """Raises UsageError for a STEADYRAY_MODE that is none; said before a run is made or looked after."""
    said = os.environ.get("STEADYRAY_MODE", "")
    if said not in ("", "act", "observe"):
        raise UsageError(f"STEADYRAY_MODE is {said!r}", hint="set it to observe or act, or unset it")


def observes() -> bool:
    """Whether STEADYRAY_MODE makes every supervisor of this machine one that only observes.

    A word that is none does too: whoever set it meant to restrain something.
    """
    return os.environ.get("STEADYRAY_MODE", "") not in ("", "act")
