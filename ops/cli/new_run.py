"""From the words of `steadyray job run` and `submit` to a run that exists. Called by `ops.cli.job`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from steadyray import contract

from ops import submission
from ops.adapters.clock import SystemClock
from ops.adapters.clusters import maker
from ops.adapters.run_store import open_store, run_names
from ops.config import runs_root
from ops.errors import NotFoundError, OpsError, UsageError
from ops.output import note
from ops.policy.model import Budgets
from ops.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Options:
    """What `run` and `submit` take."""

    name: str | None
    cluster: str
    restart_ok: bool
    time_limit: float | None
    wait_limit: float
    patience: float
    env: list[str] | None
    secret_env: list[str] | None
    working_dir: Path | None
    driver_resource: list[str] | None


def is_recipe(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


def create(words: list[str], options: Options) -> str:
    """Make the run, or find the unfinished one of the same kind; gives its name."""
    recipe = Path(words[0]) if is_recipe(words[0]) else None
    if recipe and not recipe.is_file():
        raise NotFoundError(f"there is no recipe {recipe}", hint="name a file, see training_image/recipes")
    if len(words) == 1 and recipe is None and shutil.which(words[0]) is None:
        raise NotFoundError(
            f"{words[0]} is neither a recipe (.yaml), nor a run, nor a command",
            hint="steadyray job list; a command comes after `--`",
        )
    folder = options.working_dir or (recipe.parent if recipe else Path.cwd())
    command = submission.recipe_command(recipe, tuple(words[1:])) if recipe else tuple(words)
    submission.check_root(runs_root())
    made_by = maker(options.cluster)
    made_by.connect()  # a cluster that is not there is said before anything is written
    stem = submission.default_name(command, recipe)
    if options.name is None and (running := _running(stem, command, options.cluster)):
        return running
    cpus, resources = made_by.driver()
    code_hash, code = submission.pack(folder)
    spec = RunSpec(
        schema=contract.SCHEMA,
        name=options.name or "run",
        entrypoint=command,
        recipe=recipe.name if recipe else None,
        code_hash=code_hash,
        cluster=options.cluster,
        env=_pairs(options.env, "--env"),
        secret_env=tuple(options.secret_env or ()),
        restart_ok=options.restart_ok,
        driver_cpus=cpus,
        driver_resources={**resources, **_amounts(options.driver_resource)},
        budgets=Budgets(
            wait_seconds=options.wait_limit,
            time_seconds=options.time_limit,
            patience_seconds=options.patience,
        ),
        created=SystemClock().now(),
    )
    if options.name:
        return _create_named(spec, options.name, code)
    return _create_numbered(spec, stem, code)


def _create_named(spec: RunSpec, name: str, code: bytes) -> str:
    submission.check_name(name)
    spec = spec.model_copy(update={"name": name})
    if not submission.create(open_store(runs_root(), name), SystemClock(), spec, code):
        note(f"run {name} exists already and is not finished: following it")
    return name


def _running(stem: str, command: tuple[str, ...], cluster: str) -> str | None:
    """The run that this very command already is. Its folder may have changed: logs are written there."""
    stores = {name: open_store(runs_root(), name) for name in run_names(runs_root())}
    if name := submission.unfinished(stores, stem, command, cluster):
        note(f"run {name} is this command and is not finished: following it, with the code of its start")
        note("start another one beside it: --name OTHER")
    return name


def _create_numbered(spec: RunSpec, stem: str, code: bytes) -> str:
    """`stem`, or `stem-2` and so on where finished or other runs have the name."""
    taken = run_names(runs_root())
    for number in range(1, 10_000):
        name = stem if number == 1 else f"{stem}-{number}"
        try:
            made = _create_named(spec, name, code)
        except OpsError as error:
            if name not in taken or error.exit_code != 3:
                raise
            continue
        if number > 1:
            note(f"this run is called {made}: a finished run or another command has the name {stem}")
        return made
    raise UsageError(f"too many runs called {stem}", hint="give another --name")


def _pairs(given: list[str] | None, option: str) -> dict[str, str]:
    pairs = {}
    for word in given or []:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {word!r} is not KEY=VALUE", hint=f"type {option} KEY=VALUE")
        pairs[key] = value
    return pairs


def _amounts(given: list[str] | None) -> dict[str, float]:
    try:
        return {k: float(v) for k, v in _pairs(given, "--driver-resource").items()}
    except ValueError as error:
        raise UsageError(f"--driver-resource: {error}", hint="type --driver-resource NAME=1") from error
