"""The same `train` in one process and under torchrun, without Ray: same result, and it resumes."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from steadyray import contract

EXAMPLE = Path(__file__).parents[2] / "training_image/examples/worked_example.py"
TWO_OPTIMIZERS = Path(__file__).with_name("two_optimizers.py")
ONE = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def output(launcher: list[str], script: Path, *arguments: str, run_dir: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STEADYRAY_")}
    environment["OMP_NUM_THREADS"] = "1"
    if run_dir is not None:
        environment[contract.ENV_RUN_DIR] = str(run_dir)
    done = subprocess.run(
        [*launcher, str(script), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "destroy_process_group" not in done.stderr
    return done.stdout


def results(text: str) -> list[dict[str, Any]]:
    """What the ranks printed; two that print at once may share a line."""
    return [ast.literal_eval(found) for found in re.findall(r"\{[^{}]*\}", text)]


def manifests(run_dir: Path) -> list[dict[str, Any]]:
    paths = (run_dir / contract.CHECKPOINTS).glob(f"*/{contract.MANIFEST}")
    return sorted((json.loads(path.read_text()) for path in paths), key=lambda m: m["step"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Result and run directory of the worked example in one process."""
    run_dir = tmp_path_factory.mktemp("alone")
    [result] = results(output(ONE, EXAMPLE, run_dir=run_dir))
    return result, run_dir


def test_the_worked_example_learns_in_one_process_and_leaves_a_checkpoint_and_its_progress(
    alone: tuple[dict[str, Any], Path],
) -> None:
    result, run_dir = alone
    assert result["accuracy"] > 0.97
    assert [m["step"] for m in manifests(run_dir)] == [150]
    progress = json.loads((run_dir / contract.progress(1)).read_text())
    assert (progress["step"], progress["total_steps"]) == (150, 150)


def test_the_worked_example_under_torchrun_ends_with_the_same_loss_on_both_ranks(
    alone: tuple[dict[str, Any], Path],
) -> None:
    first, second = results(output(TORCHRUN, EXAMPLE))
    assert first == second
    assert first["loss"] == pytest.approx(alone[0]["loss"], rel=1e-3)


def test_the_worked_example_started_again_has_nothing_left_to_do(
    alone: tuple[dict[str, Any], Path],
) -> None:
    result, run_dir = alone
    assert results(output(TORCHRUN, EXAMPLE, run_dir=run_dir)) == [result, result]
    assert [m["step"] for m in manifests(run_dir)] == [150]


def test_two_optimisers_an_average_a_schedule_and_an_own_evaluation_resume_at_another_world_size(
    tmp_path: Path,
) -> None:
    [half] = results(output(ONE, TWO_OPTIMIZERS, "24", run_dir=tmp_path))
    assert half["first"] == 0
    ranks = results(output(TORCHRUN, TWO_OPTIMIZERS, "48", run_dir=tmp_path))
    assert ranks[0] == ranks[1]
    assert ranks[0]["first"] == 24, "it goes on after the last step of the process before"
    assert ranks[0]["rate"] == pytest.approx(0.02 * 0.5 ** (48 // 20))
    evaluations = half["evaluations"] + ranks[0]["evaluations"]
    assert len(evaluations) == 6, "once an epoch of eight steps"
    assert evaluations[-1] < evaluations[2] < evaluations[0]
    assert [(m["step"], m["world_size"]) for m in manifests(tmp_path)] == [(24, 1), (48, 2)]


def test_ranks_that_were_not_seeded_begin_and_end_with_the_weights_of_rank_zero() -> None:
    first, second = results(output(TORCHRUN, TWO_OPTIMIZERS, "8"))
    assert first == second
