"""Recipes: a wrong one is refused before anything starts, with the file, the key and the fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from steadyray import data, models
from steadyray.config import Recipe, RecipeError, load
from steadyray.run import main

GOOD: dict[str, Any] = {"data": {"name": "digits"}, "model": {"name": "mlp"}, "epochs": 2}
RECIPES = Path(__file__).parents[2] / "training_image/recipes"


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    def make(content: Any, *overrides: str) -> Recipe:
        path = tmp_path / "recipe.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return load(path, overrides)

    return make


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.name)
def test_our_own_recipes_are_right(path: Path) -> None:
    recipe = load(path)
    assert len(data.make(recipe.data.name, recipe.data.options).train) >= recipe.batch_size
    assert models.make(recipe.model.name, recipe.model.options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**GOOD, "epoch": 3}, "unknown key 'epoch'; did you mean 'epochs'?"),
        (
            {**GOOD, "checkpoints": {"every_second": 3}},
            "unknown key 'checkpoints.every_second'; did you mean 'every_seconds'?",
        ),
        ({**GOOD, "workers": {"maximum": 3}}, "unknown key 'workers.maximum'; did you mean 'max'?"),
        ({**GOOD, "workers": {"gpu": 1}}, "unknown key 'workers.gpu'; did you mean 'gpus'?"),
        ({**GOOD, "zzz": 1}, "unknown key 'zzz'; known: batch_size, candidates,"),
        ({**GOOD, "steps": 10}, "give either epochs or steps"),
        ({key: GOOD[key] for key in ("data", "model")}, "give either epochs or steps"),
        ({**GOOD, "workers": {"min": 3, "max": 2}}, "workers.min (3) is above workers.max (2)"),
        ({**GOOD, "workers": {"min": 0}}, "workers.min: Input should be greater than 0"),
        ({**GOOD, "optimizer": {"lr": "fast"}}, "optimizer.lr: Input should be a valid number"),
        ({**GOOD, "epochs": 1.5}, "epochs: Input should be a valid integer"),
        ({"data": {"name": "digits"}, "epochs": 1}, "model: Field required"),
        ({**GOOD, "lr": 0.1}, "unknown key 'lr'; did you mean 'optimizer.lr'?"),
        ({**GOOD, "workers": 2}, "workers is a section and has no value of its own; its keys: workers.cpus,"),
        ({**GOOD, "seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({**GOOD, "optimizer": {"lr": float("inf")}}, "optimizer.lr: Input should be a finite number"),
        ({**GOOD, "step_seconds": float("nan")}, "step_seconds: Input should be a finite number"),
        ("data: {name: digits}\nepochs: 1\nepochs: 2\n", "the key 'epochs' stands there twice"),
        ("[" * 5000, "nested too deeply"),
        ([1], "a recipe is a mapping with at least `data` and `model`"),
        ("", "a recipe is a mapping with at least `data` and `model`"),
        ("data: [", "not valid YAML"),
    ],
)
def test_a_wrong_recipe_is_refused_with_file_key_and_fix(recipe: Any, content: Any, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe(content)
    assert message in str(refused.value)
    assert "recipe.yaml" in str(refused.value)


def test_all_that_is_wrong_is_said_at_once(recipe: Any) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe({**GOOD, "epoch": 3, "workers": {"min": 0}})
    assert len(str(refused.value).splitlines()) == 2


def test_overrides_are_yaml_and_may_lie_in_sections_that_the_recipe_does_not_have(recipe: Any) -> None:
    made = recipe(GOOD, "optimizer.lr=1e-3", "workers.max=2", "model.options.hidden=[8, 8]", "seed=5")
    assert (made.optimizer.lr, made.workers.max, made.seed) == (0.001, 2, 5)
    assert made.model.options == {"hidden": [8, 8]}


def test_numbers_may_be_written_as_people_write_them(recipe: Any) -> None:
    """YAML 1.1 calls 1e-4 a text, which is a wrong weight decay that is noticed in the middle of a job."""
    made = recipe(
        "data: {name: digits}\nmodel: {name: mlp}\nepochs: 1\noptimizer: {options: {weight_decay: 1e-4}}\n",
        "optimizer.options.eps=5E-8",
    )
    assert made.optimizer.options == {"weight_decay": 1e-4, "eps": 5e-8}


@pytest.mark.parametrize(
    ("content", "message"), [(b"data: {name: d\xefgits}", "not UTF-8 text"), (None, "cannot be read")]
)
def test_a_file_that_is_no_text_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(RecipeError, match=message):
        load(path)


def test_an_override_may_take_a_key_away(recipe: Any) -> None:
    made = recipe(GOOD, "epochs=null", "steps=7")
    assert (made.epochs, made.steps) == (None, 7)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr", "an override has the form key=value"),
        ("optimizer.rl=1", "unknown key 'optimizer.rl'; did you mean 'lr'?"),
        ("epochs.max=1", "epochs is a value, not a section"),
        ("seed=[", "the value is not valid YAML"),
    ],
)
def test_a_wrong_override_is_refused(recipe: Any, override: str, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe(GOOD, override)
    assert message in str(refused.value)


def test_a_recipe_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.yaml: no such recipe"):
        load(tmp_path / "none.yaml")


def test_the_command_ends_with_2_and_the_message_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({**GOOD, "epoch": 3}))
    assert main(["--config", str(path)]) == 2
    assert "did you mean 'epochs'?" in capsys.readouterr().err


# --- module:factory ----------------------------------------------------------------------------------
@pytest.fixture
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own_models.py").write_text(
        "from torch import nn\nWIDTH = 3\n\n"
        "def narrow(inputs, outputs=1):\n    return nn.Linear(inputs, outputs)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "users_own_models", raising=False)
    return "users_own_models"


def test_a_users_factory_gets_its_options(users_module: str) -> None:
    made = models.make(f"{users_module}:narrow", {"inputs": 7})
    assert made(torch.zeros(2, 7)).shape == (2, 1)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("mpl", ValueError, "'mpl' is neither one of convnet, linear, mlp nor module:factory"),
        ("users_own_models:wide", ValueError, "the module users_own_models has no function 'wide'"),
        ("users_own_models:WIDTH", ValueError, "the module users_own_models has no function 'WIDTH'"),
        ("users_own_models:", ValueError, "the module users_own_models has no function ''"),
        ("no_such_module_here:f", ModuleNotFoundError, "No module named 'no_such_module_here'"),
    ],
)
def test_a_factory_that_is_not_there_is_named(
    users_module: str, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        models.make(name, {})
    assert message in str(refused.value)
