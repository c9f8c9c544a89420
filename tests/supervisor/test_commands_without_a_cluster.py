"""Commands that work from the run directory alone: predict, list, status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from steadyray import models

from conftest import Desk
from ops.adapters.run_store import open_store

RECIPE = {
    "data": {"name": "linear", "options": {"samples": 100, "inputs": 2}},
    "model": {"name": "linear", "options": {"inputs": 2, "outputs": 1}},
    "loss": "mse_loss",
}


def test_a_saved_model_predicts_given_rows_and_the_held_out_data(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tmp_path / "home", "none")
    store = open_store(str(desk.home / "runs"), "line")
    store.put("spec.json", b"{}")
    model = models.make("linear", RECIPE["model"]["options"])  # type: ignore[index]
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, 3.0]]))  # type: ignore[operator,union-attr]
        model.bias.zero_()  # type: ignore[operator,union-attr]
    models.save(model, RECIPE, str(desk.directory("line") / "model.pt"))
    (tmp_path / "rows.csv").write_text("1,1\n0,2\n")
    try:
        answer = desk.run("job", "predict", "line", "--input", "rows.csv", "-o", "json")
        assert json.loads(answer.stdout)["predictions"] == [5.0, 6.0]
        held_out = json.loads(desk.run("job", "predict", "line", "-o", "json").stdout)
        assert len(held_out["predictions"]) == len(held_out["targets"]) == 10
        assert held_out["test_loss"] > 0
    finally:
        desk.close()


def test_a_run_without_a_model_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tmp_path / "home", "none")
    open_store(str(desk.home / "runs"), "young").put("spec.json", b"{}")
    answer = desk.run("job", "predict", "young")
    assert answer.returncode == 1
    assert "has left no model.pt" in answer.stderr


@pytest.mark.parametrize(
    ("state", "hint"), [("Succeeded", "recipes leave one"), ("Failed", "job resume young")]
)
def test_a_finished_run_without_a_model_says_where_one_comes_from(
    tmp_path: Path, state: str, hint: str
) -> None:
    desk = Desk(tmp_path, tmp_path / "home", "none")
    store = open_store(str(desk.home / "runs"), "young")
    store.put("spec.json", b"{}")
    store.put("result.json", json.dumps({"state": state}).encode())
    assert hint in desk.run("job", "predict", "young").stderr


def test_a_damaged_run_is_listed_as_damaged_and_hides_no_other(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tmp_path / "home", "none")
    for name, text in (("broken", b"{"), ("empty", b"{}")):
        open_store(str(desk.home / "runs"), name).put("spec.json", text)
    rows = json.loads(desk.run("job", "list", "-o", "json").stdout)
    assert [(r["name"], r["state"]) for r in rows] == [("broken", "Damaged"), ("empty", "Damaged")]
    answer = desk.run("job", "status", "broken")
    assert answer.returncode == 1
    assert "is damaged" in answer.stderr
