"""From the words of `steadyray job run`, `submit` and `resume` to a run as they want it.

Called by `ops.cli.job`.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steadyray import contract

from ops import packing, submission
from ops.adapters import places
from ops.adapters.clock import SystemClock
from ops.adapters.clusters import maker
from ops.adapters.run_store import open_store, probe
from ops.config import runs_root
from ops.errors import NotFoundError, OpsError, UsageError
from ops.output import note
from ops.policy.model import Mode
from ops.spec import RunSpec

SHOWN_LEFT_OUT = 5
BAD_RECIPE = 2
CHECK_RECIPE = f"""
import sys
from pathlib import Path
from steadyray.config import RecipeError, load
try:
    load(Path(sys.argv[1]), sys.argv[2:])
except RecipeError as error:
    print(error)
    sys.exit({BAD_RECIPE})
"""
"""By the library's own parser, which the tools do not import; without torch and Ray."""


@dataclass(frozen=True, slots=True)
class Options:
    """What `run` and `submit` take, and but for name and cluster `resume`; None where nothing was said."""

    name: str | None = None
    cluster: str = "local"
    token_file: Path | None = None
    restart_ok: bool = False
    time_limit: float | None = None
    wait_limit: float | None = None
    patience: float | None = None
    env: list[str] | None = None
    secret_env: list[str] | None = None
    working_dir: Path | None = None
    driver_resource: list[str] | None = None
    storage: str | None = None
    mode: Mode | None = None

    def applied(self, spec: RunSpec) -> RunSpec:
        """`spec` with what was said; the rest stays. The code is another matter."""
        limits: dict[str, Any] = {
            "time_seconds": self.time_limit,
            "wait_seconds": self.wait_limit,
            "patience_seconds": self.patience,
        }
        said = {key: value for key, value in limits.items() if value is not None}
        return spec.model_copy(
            update={
                "restart_ok": spec.restart_ok or self.restart_ok,
                "env": {**spec.env, **_pairs(self.env, "--env")},
                "secret_env": tuple(dict.fromkeys((*spec.secret_env, *(self.secret_env or ())))),
                "driver_resources": {**spec.driver_resources, **_amounts(self.driver_resource)},
                "budgets": replace(spec.budgets, **said),
                "mode": self.mode or spec.mode,
            }
        )


STORED: dict[str, Callable[[RunSpec], object]] = {
    "--restart-ok": lambda spec: spec.restart_ok,
    "--time-limit": lambda spec: spec.budgets.time_seconds,
    "--wait-limit": lambda spec: spec.budgets.wait_seconds,
    "--patience": lambda spec: spec.budgets.patience_seconds,
    "--env": lambda spec: spec.env,
    "--secret-env": lambda spec: spec.secret_env,
    "--driver-resource": lambda spec: spec.driver_resources,
    "--mode": lambda spec: spec.mode,
}
"""Options that a run keeps from its start."""


def is_recipe(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))


def attach_to(words: list[str], options: Options) -> str | None:
    """The run that a single word names."""
    named = len(words) == 1 and options.name is None and not is_recipe(words[0])
    if not named or words[0] not in places.names():
        return None
    _refuse_what_it_would_drop(words[0], options, *(["--working-dir"] if options.working_dir else []))
    return words[0]


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
    root = (options.storage or runs_root()).rstrip("/")
    probe(root)
    _check_recipe(folder, recipe.name if recipe else None, command)
    made_by = maker(options.cluster, _token_file(options))
    made_by.connect()  # a cluster that is not there is said before anything is written
    stem = submission.default_name(command, recipe)
    if options.name is None and (running := _running(stem, command, options)):
        return running
    cpus, resources = made_by.driver()
    package = _pack(folder)
    spec = RunSpec(
        schema=contract.SCHEMA,
        name=options.name or "run",
        entrypoint=command,
        recipe=recipe.name if recipe else None,
        code_hash=package.code_hash,
        cluster=options.cluster,
        token_file=_token_file(options),
        storage=root if "://" in root else "",
        mode=Mode.ACT,
        secret_env=(),
        driver_cpus=cpus,
        driver_resources=resources,
        created=SystemClock().now(),
    )
    spec = options.applied(spec)
    if options.name is not None:
        return _create_named(spec, options.name, package.data, options)
    return _create_numbered(spec, stem, package.data, options)


def reopen(name: str, options: Options) -> None:
    """Let a stopped or failed run go on with these options, and with the code of --working-dir if given."""
    store = places.store(name)
    spec, code = options.applied(submission.find_spec(store, name)), None
    if options.working_dir is not None:
        _check_recipe(options.working_dir, spec.recipe, spec.entrypoint)
        package = _pack(options.working_dir)
        spec, code = spec.model_copy(update={"code_hash": package.code_hash}), package.data
    submission.reopen(store, SystemClock(), spec, code)


def _token_file(options: Options) -> str:
    if options.token_file is None:
        return ""
    if "://" not in options.cluster:
        raise UsageError(
            "--token-file belongs to a cluster that is named by its address",
            hint="name it: --address http://HEAD:8265; a cluster of ours has its own token",
        )
    return str(options.token_file.expanduser().absolute())


def _pack(folder: Path) -> packing.Package:
    package = packing.pack(folder)
    if missed := package.left_out:
        more = f" and {len(missed) - SHOWN_LEFT_OUT} more" if len(missed) > SHOWN_LEFT_OUT else ""
        note(f"not sent along: {', '.join(missed[:SHOWN_LEFT_OUT])}{more}")
    return package


def _check_recipe(folder: Path, recipe: str | None, command: tuple[str, ...]) -> None:
    """The recipe that travels with `folder`, before anything is made. Raises UsageError."""
    if recipe is None or not folder.is_dir():  # of a missing folder `pack` tells
        return
    words = [str(folder / recipe), *submission.recipe_overrides(command)]
    answer = subprocess.run(
        [sys.executable, "-P", "-c", CHECK_RECIPE, *words], capture_output=True, text=True, check=False
    )
    if answer.returncode == BAD_RECIPE:
        raise UsageError(
            answer.stdout.strip(), hint="keys and sections are joined by a dot, for example workers.max=2"
        )
    if answer.returncode:
        why = answer.stderr.strip().rpartition("\n")[2]
        raise OpsError(f"the recipe {words[0]} cannot be checked: {why}")


def _refuse_what_it_would_drop(name: str, options: Options, *more: str) -> None:
    """Raises UsageError for options that differ from those with which the run was started."""
    asked = replace(options, name=None, cluster="local", token_file=None, working_dir=None, storage=None)
    if asked == Options() and not more:
        return
    store = places.store(name)
    spec = submission.find_spec(store, name)
    wanted = options.applied(spec)
    other = [*(option for option, of in STORED.items() if of(wanted) != of(spec)), *more]
    if other:
        end = "" if submission.finished_state(store) else f"steadyray job stop {name}; then: "
        raise UsageError(
            f"run {name} exists and keeps the options of its start; it would not get {', '.join(other)}",
            hint=f"change them: {end}steadyray job resume {name} {' '.join(other)}",
        )


def _create_named(spec: RunSpec, name: str, code: bytes, options: Options) -> str:
    submission.check_name(name)
    spec = spec.model_copy(update={"name": name})
    root = options.storage or places.root_of(name)
    made = submission.create(open_store(root, name), SystemClock(), spec, code)
    if options.storage:
        places.note(name, str(Path(root).resolve()) if "://" not in root else root)
    if not made:
        _refuse_what_it_would_drop(name, options)
        note(f"run {name} exists already and is not finished: following it")
    return name


def _running(stem: str, command: tuple[str, ...], options: Options) -> str | None:
    """The run that this very command already is. Its folder may have changed: logs are written there."""
    stores = {name: places.store(name) for name in places.names()}
    if name := submission.unfinished(stores, stem, command, options.cluster):
        _refuse_what_it_would_drop(name, options)
        note(f"run {name} is this command and is not finished: following it, with the code of its start")
        note("start another one beside it: --name OTHER")
    return name


def _create_numbered(spec: RunSpec, stem: str, code: bytes, options: Options) -> str:
    """`stem`, or `stem-2` and so on where finished or other runs have the name."""
    taken = places.names()
    for number in range(1, 10_000):
        name = stem if number == 1 else f"{stem}-{number}"
        try:
            made = _create_named(spec, name, code, options)
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
    amounts: dict[str, float] = {}
    for name, word in _pairs(given, "--driver-resource").items():
        with suppress(ValueError):
            amounts[name] = float(word)
        if not 0 < amounts.get(name, 0.0) < math.inf:
            raise UsageError(
                f"--driver-resource {name}={word}: an amount is a number above 0",
                hint=f"type --driver-resource {name}=1",
            )
    return amounts
