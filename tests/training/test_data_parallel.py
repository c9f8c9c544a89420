"""Gradients of three real ranks: wrapping anew changes no bit, and a forgotten parameter is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("wrapped_again.py")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=3",
        str(SCRIPT),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_model_that_is_wrapped_again_in_the_middle_ends_with_the_same_bits(found: dict[str, Any]) -> None:
    assert found["ours"]
    assert not found["plain"], "plain DDP does too, so this model shows no difference of layouts"


def test_gradients_that_were_not_averaged_are_an_error_before_the_optimiser_uses_them(
    found: dict[str, Any],
) -> None:
    assert "find_unused_parameters=True" in found["left out"]
