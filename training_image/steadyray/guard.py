"""Looks after the training processes of one node from outside: for a rank that is frozen or does not end.

A stopped process answers nobody and `ray.kill` takes 5 s for it, so a small actor on the same node reads its
stacks and kills it by pid. It imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Guard:
    def stacks(self, pid: int, timeout: float = 5.0) -> str:
        """Python stacks of `pid`, read without stopping it (py-spy would wait for ever on a stopped one)."""
        program = Path(sys.executable).with_name("py-spy")
        found = str(program) if program.exists() else shutil.which("py-spy")
        if found is None:
            return "no stacks: py-spy is not installed on this node (pip install 'steadyray[stacks]')"
        command = [found, "dump", "--nonblocking", "--pid", str(pid)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return f"no stacks: py-spy did not answer within {timeout:.0f} s"
        return done.stdout or f"no stacks: {done.stderr.strip()}"

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
