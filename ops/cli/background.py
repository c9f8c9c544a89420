"""Starts the process that `steadyray job submit` leaves behind, and waits until that one has begun to work.

Both ends of the arrangement are here: `supervise_in_background` in the terminal's process, and
`say_that_it_works` in the other. Used by `ops.cli.job`.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from ops.config import home
from ops.errors import OpsError, OpsTimeoutError

FIRST_TICK_SECONDS = 60.0
"""Several times what a first look takes where the cluster's address swallows packets."""
SHOWN_LINES = 5
"""Of the log, where it ended without a word of ours."""


def supervise_in_background(name: str) -> tuple[Path, str]:
    """Start the loop in a session of its own, so that it outlives this terminal.

    Returns where it logs and what its first tick came to, with the run claimed by then. Raises OpsError, with
    the exit code and in the words of that process, if it ended before; OpsTimeoutError if neither happened.
    """
    folder = home() / "supervisors"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("ab") as file:
        told_before = file.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ops.cli", "job", "supervise", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as pipe:
        if word := _first_word(pipe, name, log):
            return log, word
    raise _ended(name, process.wait(), log, told_before)


def say_that_it_works(word: str) -> None:
    """For once, after the first tick or before an act that takes long. The terminal may be gone by then."""
    with suppress(BrokenPipeError):
        os.write(1, f"{word}\n".encode())
    os.dup2(2, 1)  # nothing else may reach a pipe that nobody reads


def _first_word(pipe: IO[bytes], name: str, log: Path) -> str:
    """Empty if it ended without one."""
    if not select.select([pipe], [], [], FIRST_TICK_SECONDS)[0]:
        raise OpsTimeoutError(
            f"the process that looks after run {name} has done nothing for {FIRST_TICK_SECONDS:g} s",
            hint=f"it goes on trying, see {log}; end the run: steadyray job stop {name}",
        )
    return pipe.readline().decode(errors="replace").strip()


def _ended(name: str, code: int, log: Path, told_before: int) -> OpsError:
    with log.open("rb") as file:
        file.seek(told_before)
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    hints = [line.removeprefix("hint:").strip() for line in lines if line.startswith("hint:")]
    why = said[-1] if said else " | ".join(lines[-SHOWN_LINES:]) or f"no word (exit code {code})"
    error = OpsError(
        f"nobody looks after run {name}: the process in the background ended at once: {why}",
        hint=hints[-1] if hints else f"see {log}",
    )
    error.exit_code = code if code > 0 else OpsError.exit_code
    return error
