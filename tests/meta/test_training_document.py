"""docs/training.md is the worked example of the library: its scripts are run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from steadyray import contract


@pytest.fixture
def scripts(root: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (root / "docs/training.md").read_text(), re.DOTALL)


@pytest.fixture
def train(scripts: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(next(script for script in scripts if "steadyray.generations" in script))
    return path


def _run(*command: str, cwd: Path, **variables: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("STEADYRAY_")} | variables
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _accuracies(output: str) -> list[float]:
    """Of each rank; two ranks that print at once may share a line."""
    return [float(number) for number in re.findall(r"'accuracy': ([0-9.]+)", output)]


def test_the_document_shows_the_example_as_it_is_in_the_repository(scripts: list[str], root: Path) -> None:
    assert (root / "training_image/examples/worked_example.py").read_text() in scripts


def test_the_worked_example_learns_in_one_process(train: Path) -> None:
    assert _accuracies(_run(sys.executable, str(train), cwd=train.parent))[0] > 0.95


def test_the_worked_example_learns_under_torchrun_with_the_same_result_on_both_ranks(train: Path) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    ranks = _accuracies(_run(torchrun, "--standalone", "--nproc-per-node", "2", str(train), cwd=train.parent))
    assert len(ranks) == 2
    assert ranks[0] == ranks[1] > 0.95


def test_the_example_with_one_call_a_step_reports_its_steps(scripts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "calls.py"
    path.write_text(next(script for script in scripts if "progress.step" in script))
    run_dir = tmp_path / "run"
    _run(
        sys.executable,
        str(path),
        cwd=tmp_path,
        **{contract.ENV_RUN_DIR: str(run_dir), contract.ENV_ATTEMPT: "1"},
    )
    assert '"step": 5' in (run_dir / contract.progress(1)).read_text()


def test_the_example_with_one_call_a_step_does_nothing_outside_a_run(
    scripts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "calls.py"
    path.write_text(next(script for script in scripts if "progress.step" in script))
    _run(sys.executable, str(path), cwd=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["calls.py"]


def test_each_variable_of_the_contract_is_in_the_document(root: Path) -> None:
    text = (root / "docs/training.md").read_text()
    variables = [value for name, value in vars(contract).items() if name.startswith("ENV_")]
    assert variables
    assert [name for name in variables if f"`{name}`" not in text] == []
