"""What is typed is checked before anything is made, and what cannot be followed is refused, not dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from steadyray import config, contract

from conftest import Desk
from ops import cli
from ops.adapters.run_store import open_store
from ops.cli.new_run import is_recipe
from ops.policy.model import Budgets
from ops.policy.treatments import TREATMENTS
from ops.ports import RunStore
from ops.spec import RunSpec

RECIPES = Path(__file__).resolve().parents[2] / "training_image/recipes"
NOWHERE = "http://127.0.0.1:1"
RECIPE = "data: {name: digits}\nmodel: {name: mlp}\nepochs: 1\n"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Where there is no cluster."""
    desk = Desk(tmp_path, tmp_path / "home", NOWHERE)
    yield desk
    desk.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--driver-resource", "CPU=nan"), "an amount is a number above 0"),
        (("--driver-resource", "CPU=inf"), "an amount is a number above 0"),
        (("--driver-resource", "CPU=-1"), "an amount is a number above 0"),
        (("--driver-resource", "CPU=two"), "an amount is a number above 0"),
        (("--time-limit", "nan"), "Invalid value for '--time-limit'"),
        (("--name", ""), "cannot be the name of a run"),
    ],
)
def test_an_option_without_sense_is_refused_before_anything_is_made(
    desk: Desk, words: tuple[str, ...], told: str
) -> None:
    answer = desk.run("job", "submit", "--cluster", NOWHERE, *words, "--", "python", "-c", "0")
    assert answer.returncode == 2
    assert told in answer.stderr
    assert not (desk.home / "runs").exists() or not list((desk.home / "runs").iterdir())


def keep_run(desk: Desk, name: str, **known: Any) -> RunStore:
    spec = {"name": name, "entrypoint": ("python", "x.py"), "code_hash": "0", "cluster": NOWHERE, **known}
    store = open_store(str(desk.home / "runs"), name)
    store.put("spec.json", RunSpec.model_validate(spec).model_dump_json(by_alias=True).encode())
    return store


def command(*path: str) -> Any:
    found: Any = typer.main.get_command(cli.app)
    for word in path:
        found = found.commands[word]
    return found


def examples() -> list[tuple[str, ...]]:
    """Every command line between backquotes in the help of the commands of `job`."""
    texts = [child.help for child in command("job").commands.values() if not child.hidden]
    lines = [line for text in texts for line in re.findall(r"`(steadyray job [^`]+)`", text)]
    return [tuple(line.split()[1:]) for line in lines]


EXAMPLES = examples()


@pytest.mark.parametrize("words", EXAMPLES, ids=[" ".join(words) for words in EXAMPLES])
def test_an_example_of_the_help_can_be_typed(words: tuple[str, ...]) -> None:
    given = command(*words[:2]).make_context(words[1], list(words[2:])).params
    recipe, *overrides = given.get("words") or [""]
    if is_recipe(recipe):
        assert config.load(RECIPES / recipe, overrides)


@pytest.mark.parametrize("kind", TREATMENTS)
def test_an_advice_names_options_that_resume_has(kind: contract.FailureClass) -> None:
    options = {word for param in command("job", "resume").params for word in param.opts}
    assert set(re.findall(r"--[a-z-]+", TREATMENTS[kind].advice)) <= options


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("worker.max=2", "unknown key 'worker'; did you mean 'workers'?"),
        ("workers=2", "for example workers.max=2"),
        ("workers.max=none", "workers.max"),
        ("fast", "an override has the form key=value"),
    ],
)
def test_an_override_that_no_recipe_has_is_refused_before_anything_is_made(
    desk: Desk, override: str, said: str
) -> None:
    (desk.folder / "my.yaml").write_text(RECIPE)
    answer = desk.run("job", "run", "--cluster", NOWHERE, "my.yaml", override)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert not desk.home.exists()


def test_the_recipe_that_travels_is_the_one_that_is_checked(desk: Desk) -> None:
    (desk.folder / "my.yaml").write_text(RECIPE)
    (desk.folder / "src").mkdir()
    answer = desk.run("job", "run", "--cluster", NOWHERE, "--working-dir", "src", "my.yaml")
    assert answer.returncode == 2
    assert "src/my.yaml: no such recipe" in answer.stderr


@pytest.mark.parametrize("option", ["--time-limit", "--wait-limit", "--patience"])
def test_a_limit_below_zero_is_refused(desk: Desk, option: str) -> None:
    answer = desk.run("job", "run", option, "-1", "--", "python", "x.py")
    assert answer.returncode == 2
    assert option in answer.stderr


DROPPED = {
    "--restart-ok": ("--restart-ok",),
    "--time-limit": ("--time-limit", "60"),
    "--wait-limit": ("--wait-limit", "60"),
    "--patience": ("--patience", "5"),
    "--env": ("--env", "A=2"),
    "--secret-env": ("--secret-env", "OTHER"),
    "--driver-resource": ("--driver-resource", "big=1"),
}
SAME = ("--time-limit", "30", "--env", "A=1", "--patience", "60")
KNOWN = {"budgets": Budgets(time_seconds=30), "env": {"A": "1"}}
BY_NAME, BY_COMMAND = ("x",), ("--cluster", NOWHERE, "--", "python", "x.py")


@pytest.mark.parametrize("words", [BY_NAME, BY_COMMAND], ids=["by name", "by command"])
@pytest.mark.parametrize("option", DROPPED)
def test_an_option_that_a_living_run_would_not_get_is_refused(
    desk: Desk, option: str, words: tuple[str, ...]
) -> None:
    store = keep_run(desk, "x", **KNOWN)
    before = store.list()
    answer = desk.run("job", "submit", *SAME, *DROPPED[option], *words)
    assert answer.returncode == 2
    assert f"it would not get {option}\n" in answer.stderr
    assert f"steadyray job stop x; then: steadyray job resume x {option}" in answer.stderr
    assert store.list() == before


def test_new_code_for_a_run_that_is_named_is_refused(desk: Desk) -> None:
    keep_run(desk, "x")
    answer = desk.run("job", "run", "--working-dir", ".", "x")
    assert answer.returncode == 2
    assert "would not get --working-dir" in answer.stderr


def test_the_options_of_its_start_attach_to_a_run_again(desk: Desk) -> None:
    keep_run(desk, "x", **KNOWN)
    watching = desk.start("job", "run", *SAME, *BY_COMMAND)
    assert watching.stderr is not None
    assert watching.stderr.readline().startswith("run x is this command and is not finished: following it")


def test_the_log_of_an_attempt_that_never_was_is_missed_with_those_there_are(desk: Desk) -> None:
    store = keep_run(desk, "x")
    for number in (1, 2):
        store.put(contract.lease(number), json.dumps({"submission_id": f"x-{number}"}).encode())
    for number in ("99", "0"):
        answer = desk.run("job", "logs", "x", "--attempt", number)
        assert answer.returncode == 1
        assert f"run x has no attempt {number} (there is: 1 to 2)" in answer.stderr


def test_a_run_without_a_log_says_so_on_stderr(desk: Desk) -> None:
    keep_run(desk, "x")
    answer = desk.run("job", "logs", "x")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "run x has no log yet" in answer.stderr
