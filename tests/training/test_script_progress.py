"""`steadyray.progress`, which users put into their own loop: it never raises and costs next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
from steadyray import contract, progress


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(contract.ENV_RUN_DIR, str(tmp_path / "run"))
    monkeypatch.setenv(contract.ENV_ATTEMPT, "3")
    monkeypatch.setattr(progress, "_reporter", None)
    for name in ("RANK", "WORLD_SIZE", "RAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "run"


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_the_first_step_is_written_at_once_with_what_was_given(run_dir: Path) -> None:
    progress.step(4, total=9, loss=0.5, accuracy=0.25)
    written = read(run_dir / contract.progress(3))
    assert (written["step"], written["total_steps"], written["loss"]) == (4, 9, 0.5)
    assert (written["metrics"], written["attempt"]) == ({"accuracy": 0.25}, 3)
    assert read(run_dir / contract.rank_progress(3, 0))["step"] == 4


def test_a_total_that_is_no_plain_number_is_written_as_one(run_dir: Path) -> None:
    progress.step(4, total=numpy.int64(9), loss=numpy.float32(0.5))  # type: ignore[arg-type]
    written = read(run_dir / contract.progress(3))
    assert (written["total_steps"], written["loss"]) == (9, 0.5)


def test_steps_in_between_are_not_written_and_the_last_one_is(run_dir: Path) -> None:
    for n in range(1, 11):
        progress.step(n, total=10)
        if n == 9:
            assert read(run_dir / contract.progress(3))["step"] == 1
    assert read(run_dir / contract.progress(3))["step"] == 10


def test_a_step_is_written_again_once_a_second_has_passed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "WRITE_SECONDS", 0.0)
    progress.step(1)
    progress.step(2)
    assert read(run_dir / contract.progress(3))["step"] == 2


def test_each_rank_has_a_file_of_its_own_and_rank_zero_the_one_of_the_job(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    progress.step(5)
    assert read(run_dir / contract.rank_progress(3, 1))["step"] == 5
    assert not (run_dir / contract.progress(3)).exists()


def test_a_phase_is_shown_while_it_lasts_and_is_over_after_an_exception(run_dir: Path) -> None:
    progress.step(1)

    def phases() -> tuple[str, str]:
        job, own = run_dir / contract.progress(3), run_dir / contract.rank_progress(3, 0)
        return read(job)["phase"], read(own)["phase"]

    def evaluate() -> None:
        with progress.phase("eval"):
            assert phases() == ("eval", "eval")
            raise KeyError("the user's own")

    with pytest.raises(KeyError):
        evaluate()
    assert phases() == ("train", "train")


def test_a_phase_before_the_first_step_is_shown_too(run_dir: Path) -> None:
    with progress.phase("download"):
        assert read(run_dir / contract.rank_progress(3, 0))["phase"] == "download"


# --- never raises ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "more"),
    [
        (("five",), {}),
        ((None,), {}),
        ((float("nan"),), {}),
        ((1,), {"loss": "high"}),
        ((1,), {"total": "many"}),
        ((1,), {"accuracy": [1, 2]}),
        ((1,), {"loss": float("inf")}),
        ((-1,), {"total": 0}),
    ],
)
def test_values_that_make_no_sense_are_not_the_trainings_problem(
    run_dir: Path, args: tuple[Any, ...], more: dict[str, Any]
) -> None:
    progress.step(*args, **more)
    progress.step(2, loss=0.5, total=2)
    assert read(run_dir / contract.progress(3))["step"] == 2


@pytest.mark.parametrize("name", [contract.ENV_ATTEMPT, "RANK", "WORLD_SIZE"])
def test_an_environment_that_makes_no_sense_is_survived(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "first")
    progress.step(1)
    with progress.phase("eval"):
        progress.step(2)


def test_outside_a_run_nothing_is_written(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(contract.ENV_RUN_DIR)
    monkeypatch.chdir(tmp_path)
    progress.step(1, total=1)
    with progress.phase("eval"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_that_cannot_be_written_is_survived(run_dir: Path) -> None:
    run_dir.write_text("a file where the folder should be, which also root cannot write into")
    progress.step(1, total=1)
    with progress.phase("eval"):
        progress.step(2)


def test_a_run_directory_that_comes_back_is_written_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "WRITE_SECONDS", 0.0)
    run_dir.write_text("in the way")
    progress.step(1)
    run_dir.unlink()
    progress.step(2)
    assert read(run_dir / contract.progress(3))["step"] == 2


# --- cheap -------------------------------------------------------------------------------------------
def test_a_call_costs_less_than_writing_a_small_file(run_dir: Path, tmp_path: Path) -> None:
    """As a ratio, so that it holds on slow machines: the measured one is about 0.1."""
    progress.step(0)

    def seconds(work: Any) -> float:
        times = []
        for n in range(1, 301):
            began = time.perf_counter()
            work(n)
            times.append(time.perf_counter() - began)
        return sorted(times)[len(times) // 2]

    write = seconds(lambda n: (tmp_path / "small").write_text(str(n)))
    assert seconds(lambda n: progress.step(n, loss=0.5)) < write


def test_importing_it_loads_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from steadyray import progress as p; p.step(1); print({'torch', 'ray'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
