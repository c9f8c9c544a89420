"""The command in a person's own project: files named like ours, folders that change, clusters elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from steadyray import models

from conftest import Desk, driver_of
from ops import packing
from ops.adapters import local_ray
from ops.adapters.local_cluster import ClusterConnection
from ops.adapters.run_store import open_store
from ops.policy.model import Budgets
from ops.spec import RunSpec

NAMED_LIKE_OURS = ("ops.py", "ray.py", "yaml.py", "steadyray.py", "typer.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in NAMED_LIKE_OURS:
        (folder / name).write_text("raise SystemExit('a file of the project was taken for a package')\n")
    return folder


@pytest.fixture
def alone(tmp_path: Path, project: Path) -> Iterator[Desk]:
    """Where there is no cluster."""
    desk = Desk(project, tmp_path / "home", "none")
    yield desk
    desk.close()


def keep_run(desk: Desk, name: str, **known: object) -> None:
    spec = {"name": name, "entrypoint": ("python", "x.py"), "code_hash": "0", "cluster": "none", **known}
    text = RunSpec.model_validate(spec).model_dump_json(by_alias=True)
    open_store(str(desk.home / "runs"), name).put("spec.json", text.encode())


def log_of(desk: Desk, run: str) -> str:
    return (desk.home / "supervisors" / f"{run}.log").read_text()


def test_submit_works_beside_files_that_are_named_like_our_packages(alone: Desk) -> None:
    keep_run(alone, "done")
    result = {"state": "Succeeded", "attempt": 1, "failure_class": None, "message": "", "step": 1}
    open_store(str(alone.home / "runs"), "done").put("result.json", json.dumps(result).encode())
    answer = alone.run("job", "submit", "done")
    assert (answer.returncode, answer.stdout) == (0, "done\n")
    assert "Succeeded attempt" in log_of(alone, "done")


def test_submit_says_why_the_process_in_the_background_has_ended(alone: Desk) -> None:
    open_store(str(alone.home / "runs"), "broken").put("spec.json", b"{")
    answer = alone.run("job", "submit", "broken")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "nobody looks after run broken" in answer.stderr
    assert "spec.json is damaged" in answer.stderr
    assert "hint:  the run cannot be continued" in answer.stderr


def test_predict_finds_the_projects_own_model_and_our_packages(alone: Desk) -> None:
    (alone.folder / "mine.py").write_text("import torch\n\ndef net():\n    return torch.nn.Linear(2, 1)\n")
    keep_run(alone, "line")
    model = models.make("linear", {"inputs": 2, "outputs": 1})
    recipe = {"model": {"name": "mine:net", "options": {}}, "loss": "mse_loss"}
    models.save(model, recipe, str(alone.directory("line") / "model.pt"))
    (alone.folder / "rows.csv").write_text("1,1\n")
    answer = alone.run("job", "predict", "line", "--input", "rows.csv", "-o", "json")
    assert answer.returncode == 0, answer.stderr
    assert '"predictions"' in answer.stdout


def test_predict_finds_the_model_in_the_code_of_the_run_from_any_folder(alone: Desk, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    text = "import pathlib, torch\n\nsize = int(pathlib.Path(__file__).with_name('size').read_text())\n"
    (tmp_path / "src/mine.py").write_text(text + "def net():\n    return torch.nn.Linear(size, 1)\n")
    (tmp_path / "src/size").write_text("2")
    package = packing.pack(tmp_path / "src")
    keep_run(alone, "line", code_hash=package.code_hash)
    open_store(str(alone.home / "runs"), "line").put(f"code/{package.code_hash}.zip", package.data)
    recipe = {"model": {"name": "mine:net", "options": {}}, "loss": "mse_loss"}
    model = models.make("linear", {"inputs": 2, "outputs": 1})
    models.save(model, recipe, str(alone.directory("line") / "model.pt"))
    (alone.folder / "rows.csv").write_text("1,1\n")
    (alone.folder / "mine.py").write_text("raise SystemExit('not the code of the run')\n")
    answer = alone.run("job", "predict", "line", "--input", "rows.csv", "-o", "json")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("recipe", "said", "hint"),
    [
        (
            {"model": {"name": "elsewhere:net", "options": {}}, "loss": "mse_loss"},
            "ModuleNotFoundError: No module named 'elsewhere'",
            "install what is missing",
        ),
        ({"loss": "mse_loss"}, "KeyError: 'model'", "load another model.pt with your own code"),
    ],
    ids=["module", "key"],
)
def test_a_model_that_predict_cannot_use_is_told_in_a_line_with_a_hint(
    alone: Desk, recipe: dict[str, object], said: str, hint: str
) -> None:
    keep_run(alone, "line")
    model = models.make("linear", {"inputs": 2, "outputs": 1})
    models.save(model, recipe, str(alone.directory("line") / "model.pt"))
    answer = alone.run("job", "predict", "line")
    assert answer.returncode == 1
    assert f"cannot be used: {said}\n" in answer.stderr
    assert hint in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_cluster_of_another_folder_is_missed_with_the_folder_that_was_searched(alone: Desk) -> None:
    answer = alone.run("job", "run", "--cluster", "none", "--", "python", "x.py")
    assert answer.returncode == 1
    assert f"looked in {alone.home / 'clusters'}" in answer.stderr
    assert "STEADYRAY_HOME" in answer.stderr


def test_a_working_folder_that_is_not_there_is_refused(alone: Desk) -> None:
    words = ("--cluster", "http://127.0.0.1:1", "--working-dir", "nope")
    answer = alone.run("job", "run", *words, "--", "python", "x.py")
    assert answer.returncode == 2
    assert "there is no folder nope" in answer.stderr


def test_the_same_command_finds_its_run_though_the_folder_has_changed(alone: Desk) -> None:
    words = ("job", "run", "--cluster", "http://127.0.0.1:1", "--time-limit", "2", "--", "python")
    started = {"entrypoint": ("python", "my_train.py"), "budgets": Budgets(time_seconds=2)}
    for name in ("my-train", "my-train-2", "my-train-30"):
        keep_run(alone, name, cluster="http://127.0.0.1:1", **started)
    open_store(str(alone.home / "runs"), "my-train").put("result.json", b'{"state": "Failed"}')
    watching = alone.start(*words, "my_train.py")
    assert watching.stderr is not None
    first = watching.stderr.readline()
    assert (
        first
        == "run my-train-2 is this command and is not finished: following it, with the code of its start\n"
    )
    assert not alone.directory("my-train-3").exists()


def test_another_command_of_that_name_gets_a_number_and_it_is_said(alone: Desk) -> None:
    keep_run(alone, "my-train", cluster="http://127.0.0.1:1", entrypoint=("python", "my_train.py"))
    words = ("job", "run", "--cluster", "http://127.0.0.1:1", "--", "python", "my_train.py", "--big")
    watching = alone.start(*words)
    assert watching.stderr is not None
    assert "this run is called my-train-2" in watching.stderr.readline()


@pytest.mark.ray
def test_a_cluster_and_a_run_can_be_made_beside_files_that_are_named_like_our_packages(
    steadyray_home: Path,
    make_cluster: Callable[..., ClusterConnection],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(project)
    cluster = make_cluster({"groups": {"cpu": {"min": 1}}})
    assert local_ray.look(cluster).nodes
    desk, src = Desk(project, steadyray_home, cluster.name), ("--working-dir", "src")
    try:
        # Ray puts what travels before its own packages, in its workers too, so ray.py must stay at home
        (project / "src").mkdir()
        (project / "src" / "ops.py").touch()
        (project / "src" / "train.py").write_text("print('trained')")
        words = ("job", "submit", *desk.job("unset-secret", *src, "--secret-env", "NOT_SET_ANYWHERE")[2:])
        refused = desk.run(*words, "train.py")
        assert refused.returncode == 2
        assert "ended at once: run unset-secret needs the secret variable NOT_SET_ANYWHERE" in refused.stderr
        submitted = desk.run("job", "submit", *desk.job("beside", *src)[2:], "train.py")
        assert (submitted.returncode, submitted.stdout) == (0, "beside\n")
        assert driver_of(desk, "beside", 1)
        assert desk.run("job", "run", "beside").returncode == 0
    finally:
        desk.close()
