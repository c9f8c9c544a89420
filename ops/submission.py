"""Makes a run: name, code, spec; and lets one that has ended go on. Called by `ops.cli.new_run`, while no
supervisor of the run has anything to do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steadyray import contract
from steadyray.contract import EventKind

from ops import records
from ops.errors import NotFoundError, RefusedError, StoreError, UsageError
from ops.policy.model import FINAL, Action, PastAction, RunState
from ops.policy.redaction import SHORTEST_SECRET, names_secret, redact, too_plain
from ops.ports import Clock, RunStore
from ops.record import Recorder
from ops.spec import RunSpec

RECIPE_COMMAND = ("python", "-m", "steadyray.run", "--config")


def recipe_command(recipe: Path, overrides: tuple[str, ...]) -> tuple[str, ...]:
    return (*RECIPE_COMMAND, recipe.name, *overrides)


def recipe_overrides(command: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a command that `recipe_command` made."""
    return command[len(RECIPE_COMMAND) + 1 :]


def default_name(words: tuple[str, ...], recipe: Path | None) -> str:
    """From the recipe's or the script's file name; always a legal name."""
    stem = (
        recipe.stem
        if recipe
        else next((Path(w).stem for w in words if w.endswith(".py")), Path(words[0]).name)
    )
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].strip("-")
    return name or "run"


def check_name(name: str) -> None:
    if not contract.RUN_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            hint="use small letters, digits and dashes, at most 48, with a letter or digit at both ends",
        )


def check_no_secrets(spec: RunSpec) -> None:
    """A spec is stored for ever, so nothing that looks like a credential may enter it."""
    for word in spec.entrypoint:
        if redact(word) != word:
            raise UsageError(
                f"an argument of the command contains what looks like a credential: {redact(word)}",
                hint="pass it with --secret-env NAME and let the script read $NAME",
            )
    for name, value in spec.env.items():
        if names_secret(name) or redact(value) != value:
            raise UsageError(
                f"the variable {name} looks like a secret, and the value of --env is stored with the run",
                hint=f"set it in this shell and pass --secret-env {name}",
            )
    for name in spec.secret_env:
        if (given := os.environ.get(name)) is not None and too_plain(given):
            raise UsageError(
                f"the value of --secret-env {name} is shorter than {SHORTEST_SECRET} characters or a common "
                "word: hiding it would make every log and record unreadable",
                hint=f"if it is no secret, pass it with --env {name}=VALUE; else take a longer one",
            )


def unfinished(
    stores: Mapping[str, RunStore], stem: str, entrypoint: tuple[str, ...], cluster: str
) -> str | None:
    """The oldest of the runs called `stem`, `stem-2` … that is this command and has not ended."""
    called = re.compile(rf"{re.escape(stem)}(?:-(\d+))?")
    numbers = {name: int(m[1] or 1) for name in stores if (m := called.fullmatch(name))}
    for name in sorted(numbers, key=numbers.__getitem__):
        with suppress(StoreError):  # a damaged run hides no other
            spec = read_spec(stores[name])
            same = spec is not None and (spec.entrypoint, spec.cluster) == (entrypoint, cluster)
            if same and finished_state(stores[name]) is None:
                return name
    return None


def create(store: RunStore, clock: Clock, spec: RunSpec, code: bytes) -> bool:
    """Store code and spec; False if the very same run exists already and is not finished.

    Raises RefusedError if the name belongs to a finished run or to one that is something else.
    """
    check_name(spec.name)
    check_no_secrets(spec)
    recorder = Recorder(store, clock)
    if (old := read_spec(store)) is not None:
        _refuse_other(store, old, spec)
        return False
    store.create(spec.code_path, code)
    if not recorder.create(contract.SPEC, _record(spec)):
        return create(store, clock, spec, code)  # somebody was faster; compare with theirs
    recorder.attempt_event(
        EventKind.RUN_CREATED,
        0,
        name=spec.name,
        entrypoint=list(spec.entrypoint),
        recipe=spec.recipe,
        code_hash=spec.code_hash,
    )
    return True


def _record(spec: RunSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True)


def _refuse_other(store: RunStore, old: RunSpec, new: RunSpec) -> None:
    if (state := finished_state(store)) is not None:
        raise RefusedError(
            f"run {new.name} is already finished ({state}); it is not redone",
            hint=f"look: steadyray job status {new.name}; again: --name OTHER"
            + ("" if state is RunState.SUCCEEDED else f"; continue it: steadyray job resume {new.name}"),
        )
    same = (old.entrypoint, old.code_hash, old.cluster) == (new.entrypoint, new.code_hash, new.cluster)
    if not same:
        raise RefusedError(
            f"run {new.name} exists, is not finished, and is another command or other code",
            hint=f"follow it: steadyray job run {new.name}; or take another name: --name OTHER",
        )


def read_spec(store: RunStore) -> RunSpec | None:
    """None where there is none. Raises StoreError for one that cannot be read."""
    data = store.get(contract.SPEC)
    if data is None:
        return None
    try:
        return RunSpec.model_validate(json.loads(data))
    except (ValueError, RecursionError) as error:  # pydantic's and json's errors are ValueErrors
        why = str(error).splitlines()[0]
        raise StoreError(
            f"{store.url}/{contract.SPEC} is damaged: {why}",
            hint="the run cannot be continued; its checkpoints are whole",
        ) from error


def find_spec(store: RunStore, name: str) -> RunSpec:
    if (spec := read_spec(store)) is None:
        raise NotFoundError(f"there is no run called {name}", hint="list them: steadyray job list")
    return spec


def finished_state(store: RunStore) -> RunState | None:
    result = records.result(store)
    state = RunState(result["state"]) if result else None
    return state if state in FINAL else None


def reopen(store: RunStore, clock: Clock, spec: RunSpec, code: bytes | None = None) -> None:
    """Let a failed or stopped run go on as `spec` says. Old result, spec and code are kept beside the new.

    The run is finished until its result is deleted, so nobody acts on half of this; after a crash before
    that, the same call does the rest.
    """
    name, state, before = spec.name, finished_state(store), find_spec(store, spec.name)
    if state is RunState.SUCCEEDED:
        raise RefusedError(f"run {name} has succeeded; there is nothing to resume", hint="use another --name")
    if state is None and spec != before:
        raise RefusedError(
            f"run {name} is not finished; its code and options can be changed only between two attempts",
            hint=f"end it: steadyray job stop {name}; then type this again",
        )
    if state is not None:
        old = store.get(contract.RESULT) or b"{}"
        attempt = int(json.loads(old).get("attempt") or 0)
        if spec != before:
            _change(store, clock, attempt, before, spec, code)
        store.put(f"results/{attempt:04d}.json", old)
        Recorder(store, clock).finished()  # its writer may have been killed before it could say so
        _note_resume(store, clock, attempt)
        store.delete(contract.RESULT)
    store.delete(contract.STOP_REQUEST)


def _change(
    store: RunStore, clock: Clock, attempt: int, before: RunSpec, spec: RunSpec, code: bytes | None
) -> None:
    """The first to write what attempt `attempt` ran with was right: a second resumer may see our spec."""
    check_no_secrets(spec)
    recorder = Recorder(store, clock)
    if code is not None:
        store.create(spec.code_path, code)
    recorder.create(f"results/{attempt:04d}.spec.json", _record(before))
    recorder.put(contract.SPEC, _record(spec))


def _note_resume(store: RunStore, clock: Clock, attempt: int) -> None:
    """As an act: what went wrong before it no longer counts, and the limits of time begin anew."""
    incident = f"resume-{attempt:04d}"
    k = 1 + sum(1 for path in store.list("actions") if path.startswith(f"actions/{incident}-"))
    act = PastAction(incident, k, attempt, Action.RESUME, "", charged=False, best_step=0, time=clock.now())
    Recorder(store, clock).create(contract.action(incident, k), asdict(act))
