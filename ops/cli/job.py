"""`steadyray job`: start, follow, look at and end runs. Parses and prints; the work is in the use cases."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from steadyray import contract
from steadyray.contract import FailureClass

from ops import explain as explaining
from ops import packing, submission
from ops.adapters import places
from ops.adapters.clock import SystemClock
from ops.adapters.clusters import maker
from ops.cli.background import say_that_it_works, supervise_in_background
from ops.cli.fleet import fleet_of
from ops.cli.live import LiveView
from ops.cli.new_run import Options, attach_to, create, reopen
from ops.cli.report import present
from ops.config import check_mode, observes
from ops.errors import NotFoundError, OpsError, OpsTimeoutError, StoreError
from ops.orphans import end_jobs
from ops.output import Format, note, show
from ops.policy.model import Budgets, Mode, RunSnapshot, RunState
from ops.ports import RunStore
from ops.record import Recorder
from ops.supervise import Supervisor, Tick

app = typer.Typer(help="Start, follow, look at and end runs.", no_args_is_help=True)

DEFAULTS = Budgets()
STOP_PATIENCE_SECONDS = 20.0
"""How long `job stop` waits for a silent cluster; a head that is started again takes 6 s."""
MODEL_FILE = "model.pt"
"""What the library's recipes leave in the run directory."""
PREDICT = (
    "import sys; from steadyray import predict; sys.path += [sys.argv.pop(1), '.']; sys.exit(predict.main())"
)
"""A recipe may name a model in the run's code or, where that was not kept, in the current folder. Their files
must not stand before the packages' own."""
NO_MODULE = "type it in the folder of that module, or install what is missing beside steadyray"
NO_RECIPE = f"it reads what the library's recipes leave; load another {MODEL_FILE} with your own code"
PREDICT_HINTS = {
    "ModuleNotFoundError": NO_MODULE,
    "ImportError": NO_MODULE,
    "KeyError": NO_RECIPE,
    "TypeError": NO_RECIPE,
    "_pickle.UnpicklingError": NO_RECIPE,
}
"""By what the library ended with."""

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="RECIPE.yaml [KEY=VALUE ...] | NAME | -- COMMAND ...",
        help="A recipe with overrides, the name of a run to follow, or a command after `--`.",
        show_default=False,
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the run.", show_default=False)]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run; default: after recipe or script.")]
Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        "--address",
        help="Cluster by name, or any Ray's dashboard by its http address.",
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="Token of the cluster at that address; read each time.")
]
RestartOk = Annotated[bool, typer.Option("--restart-ok", help="The script may start over after each loss.")]
TimeLimit = Annotated[
    float | None,
    typer.Option("--time-limit", min=0, help="Seconds the whole run may take; at first no limit."),
]
WaitLimit = Annotated[
    float | None,
    typer.Option(
        "--wait-limit",
        min=0,
        help=f"Seconds to wait for missing capacity; at first {DEFAULTS.wait_seconds:g}.",
    ),
]
Patience = Annotated[
    float | None,
    typer.Option(
        "--patience",
        min=0,
        help="Seconds of silence of progress and log that mean a hang; at first "
        f"{DEFAULTS.patience_seconds:g}.",
    ),
]
Env = Annotated[list[str] | None, typer.Option("--env", help="KEY=VALUE for the job; stored with the run.")]
SecretEnv = Annotated[
    list[str] | None, typer.Option("--secret-env", help="KEY whose value is passed on and stored nowhere.")
]
WorkingDir = Annotated[
    Path | None,
    typer.Option("--working-dir", help="Folder to send along; default: the recipe's, or the current one."),
]
NewCode = Annotated[
    Path | None,
    typer.Option(
        "--working-dir", help="Folder whose code the run gets from now on; default: its code stays."
    ),
]
Resource = Annotated[
    list[str] | None,
    typer.Option("--driver-resource", help="NAME=AMOUNT that the driver's node must have."),
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="Where the run is kept: a folder that all nodes share, s3://…, gs://… or az://…; "
        "at first STEADYRAY_RUNS.",
    ),
]
ModeOption = Annotated[
    Mode | None,
    typer.Option(
        "--mode",
        help="observe: take and note every decision, and do nothing that nobody asked for; at first act. "
        "STEADYRAY_MODE=observe does the same for all runs of a machine.",
    ),
]
Output = Annotated[Format, typer.Option("-o", "--output", help="table, json or yaml.")]


@app.command()
def run(
    words: Words,
    name: Name = None,
    cluster: Cluster = "local",
    token_file: TokenFile = None,
    restart_ok: RestartOk = False,
    time_limit: TimeLimit = None,
    wait_limit: WaitLimit = None,
    patience: Patience = None,
    env: Env = None,
    secret_env: SecretEnv = None,
    working_dir: WorkingDir = None,
    driver_resource: Resource = None,
    storage: Storage = None,
    mode: ModeOption = None,
) -> None:
    """Run a training to its end and stay attached; the same command attaches again after Ctrl-C.

    After Ctrl-C nobody looks after the run. A closed terminal leaves it to a process in the background.

    Examples: `steadyray job run digits.yaml workers.max=2` and `steadyray job run -- python my_train.py`.
    """
    options = Options(
        name,
        cluster,
        token_file,
        restart_ok,
        time_limit,
        wait_limit,
        patience,
        env,
        secret_env,
        working_dir,
        driver_resource,
        storage,
        mode,
    )
    check_mode()
    run_name = attach_to(words, options) or create(words, options)
    follow(run_name)


@app.command()
def submit(
    words: Words,
    name: Name = None,
    cluster: Cluster = "local",
    token_file: TokenFile = None,
    restart_ok: RestartOk = False,
    time_limit: TimeLimit = None,
    wait_limit: WaitLimit = None,
    patience: Patience = None,
    env: Env = None,
    secret_env: SecretEnv = None,
    working_dir: WorkingDir = None,
    driver_resource: Resource = None,
    storage: Storage = None,
    mode: ModeOption = None,
) -> None:
    """Like `run`, but return once it is on its way; a process in the background looks after the run.

    Examples: `steadyray job submit digits.yaml --name night` and `steadyray job run night` to follow it.
    """
    options = Options(
        name,
        cluster,
        token_file,
        restart_ok,
        time_limit,
        wait_limit,
        patience,
        env,
        secret_env,
        working_dir,
        driver_resource,
        storage,
        mode,
    )
    check_mode()
    run_name = attach_to(words, options) or create(words, options)
    _leave_in_background(run_name)
    note(f"follow it: steadyray job run {run_name}")
    typer.echo(run_name)


@app.command("supervise", hidden=True)
def supervise(name: NameArgument) -> None:
    """The loop of the process that `submit` leaves in the background."""
    last = ""

    def tell(seen: RunSnapshot, reason: str) -> None:
        nonlocal last
        line = f"{seen.state} attempt {seen.attempt}: {reason}: {seen.message}"
        if not last:
            say_that_it_works(line)
        if line != last:
            note(line)
        last = line

    supervisor = open_supervisor(name)
    supervisor.announce = lambda seen: tell(seen, "Acts")
    for tick in ticks(supervisor):
        tell(tick.snapshot, tick.decision.reason)


@app.command("list")
def list_runs(output: Output = Format.TABLE) -> None:
    """All runs with their state. Examples: `steadyray job list` and `steadyray job list -o json`."""
    rows = [explaining.summary(places.store(name)) for name in places.names()]
    show(rows, output, explaining.SUMMARY)


@app.command()
def status(name: NameArgument, output: Output = Format.TABLE) -> None:
    """Where a run stands. Examples: `steadyray job status digits` and `… digits -o json`."""
    store = _store(name)
    show(explaining.status(store, observes=observes()), output)


@app.command()
def logs(
    name: NameArgument,
    follow_on: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run ends.")] = False,
    attempt: Annotated[int | None, typer.Option(help="Attempt; default: the newest.")] = None,
    lines: Annotated[int, typer.Option(help="How many of the last lines.", min=1)] = 200,
) -> None:
    """The driver's log, also after its node is gone.

    Examples: `steadyray job logs digits` and `steadyray job logs digits -f`.
    """
    store = _store(name)
    newest, shown = explaining.newest_attempt(store), False
    if attempt is not None and not 1 <= attempt <= newest:
        raise NotFoundError(
            f"run {name} has no attempt {attempt} (there is: {_numbers(newest)})",
            hint=f"the newest: steadyray job logs {name}",
        )
    supervisor = _supervisor(name, store)
    for text in explaining.log_lines(supervisor, follow=follow_on, attempt=attempt, lines=lines):
        typer.echo(text)
        shown = True
    if not shown:
        note(f"run {name} has no log yet")


@app.command()
def stop(name: NameArgument, cluster: Cluster = "local") -> None:
    """End a run; its checkpoints stay.

    The cluster is that of the run. It is to be named only for a run whose directory was lost.

    Examples: `steadyray job stop digits`, and later `steadyray job resume digits`.
    """
    try:
        store = _store(name)
        submission.find_spec(store, name)  # of a run in a bucket the name alone tells nothing
    except NotFoundError:
        ended = end_jobs(maker(cluster).connect(), places.url(name))
        if not ended:
            raise
        note(f"run {name} has lost its directory; asked its job to end: {', '.join(ended)}")
        return
    if (state := submission.finished_state(store)) is not None:
        note(f"run {name} is already finished ({state})")
        return
    # put, as a damaged request that stands there is none to the supervisor, and would never be carried out
    Recorder(store, SystemClock()).put(contract.STOP_REQUEST, {"time": SystemClock().now()})
    last, supervisor = "", _supervisor(name, store)
    deadline = supervisor.clock.monotonic() + STOP_PATIENCE_SECONDS
    for tick in ticks(supervisor):
        if tick.snapshot.message != last:
            note(last := tick.snapshot.message)
        blind = tick.decision.reason == FailureClass.CONTROL_PLANE_BLIND
        if blind and supervisor.clock.monotonic() > deadline:
            raise OpsTimeoutError(
                f"the cluster of run {name} did not answer for {STOP_PATIENCE_SECONDS:g} s; the stop is "
                "noted, and whoever looks after the run carries it out once the cluster answers",
                hint=f"look at the cluster: steadyray cluster status; then again: steadyray job stop {name}",
            )


@app.command()
def resume(
    name: NameArgument,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once, as `submit` does.")] = False,
    restart_ok: RestartOk = False,
    time_limit: TimeLimit = None,
    wait_limit: WaitLimit = None,
    patience: Patience = None,
    env: Env = None,
    secret_env: SecretEnv = None,
    working_dir: NewCode = None,
    driver_resource: Resource = None,
    mode: ModeOption = None,
) -> None:
    """Go on with a stopped or failed run from its last checkpoint; what is not given stays as it was.

    Limits of time begin anew. Examples: `steadyray job resume digits --detach`, and with corrected code
    `steadyray job resume digits --working-dir .`.
    """
    check_mode()
    _store(name)
    options = Options(
        restart_ok=restart_ok,
        time_limit=time_limit,
        wait_limit=wait_limit,
        patience=patience,
        env=env,
        secret_env=secret_env,
        working_dir=working_dir,
        driver_resource=driver_resource,
        mode=mode,
    )
    reopen(name, options)
    if detach:
        _leave_in_background(name)
    else:
        follow(name)


@app.command()
def explain(name: NameArgument, output: Output = Format.TABLE) -> None:
    """What went wrong, how we know, what was decided, what comes next.

    Examples: `steadyray job explain digits` and `steadyray job explain digits -o json`.
    """
    store = _store(name)
    story = explaining.explain(_supervisor(name, store))
    if output is Format.TABLE:
        typer.echo(explaining.as_text(story))
    else:
        show(story, output)


@app.command()
def predict(
    name: NameArgument,
    rows: Annotated[
        Path | None, typer.Option("--input", help="CSV, one example a row; default: the held-out data.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many examples to show.", min=1)] = 10,
    output: Output = Format.TABLE,
) -> None:
    """Use the model that a run has left.

    Examples: `steadyray job predict digits` and `steadyray job predict digits --input rows.csv -o json`.
    """
    store = _store(name)
    if store.get(MODEL_FILE) is None:
        raise NotFoundError(f"run {name} has left no {MODEL_FILE}", hint=_why_no_model(store, name))
    options = ["--count", str(count), *(["--input", str(rows)] if rows else [])]
    with _code_of(store) as code:
        words = [sys.executable, "-P", "-c", PREDICT, code, store.url, *options]
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode:
        said = _last_error(answer.stderr)
        hint = PREDICT_HINTS.get(said.partition(":")[0], "")
        raise OpsError(f"the model of run {name} cannot be used: {said}", hint=hint)
    show(json.loads(answer.stdout), output)


def _why_no_model(store: RunStore, name: str) -> str:
    match submission.finished_state(store):
        case None:
            return f"see how far it is: steadyray job status {name}"
        case RunState.SUCCEEDED:
            return (
                f"recipes leave one; another script would have to save it as $STEADYRAY_RUN_DIR/{MODEL_FILE}"
            )
        case _:
            return f"a recipe leaves it at its end; let it go on: steadyray job resume {name}"


# --- shared by the commands ---------------------------------------------------------------------------
def _leave_in_background(name: str) -> None:
    log, word = supervise_in_background(name)
    note(f"run {name} is looked after in the background (log: {log})")
    note(f"run {name}: {word}")


def follow(name: str) -> None:
    """Show the run until it ends; leaves by the exit code that its end stands for."""
    last: RunSnapshot | None = None
    with told_how_to_come_back(name), LiveView(name) as view:
        supervisor = open_supervisor(name)
        supervisor.announce = view.update
        for tick in ticks(supervisor):
            last = tick.snapshot
            view.update(last)
    if last is not None:
        with suppress(BrokenPipeError):  # the exit code still says how the run ended
            present(places.store(name), name)
        raise typer.Exit(outcome(last))


def outcome(last: RunSnapshot) -> int:
    """Say how it ended; the same code however often one asks: 0, 4 if a limit ended it, else 1."""
    if last.state is RunState.SUCCEEDED:
        note(f"run {last.run} succeeded")
        return 0
    code = f" (driver exit code {last.exit_code})" if last.exit_code is not None else ""
    note(f"run {last.run}: {last.state}{code}: {last.message}")
    note(f"why: steadyray job explain {last.run}")
    timed_out = last.failure_class in {FailureClass.DEADLINE_EXCEEDED, FailureClass.CAPACITY_MISSING}
    return OpsTimeoutError.exit_code if timed_out else 1


def ticks(supervisor: Supervisor) -> Iterator[Tick]:
    """Ticks until the run is finished, with the pauses that each asks for.

    A person may end the run and resume it with other code and options within one pause.
    """
    while True:
        tick = supervisor.tick()
        yield tick
        if tick.finished:
            return
        supervisor.clock.sleep(tick.wake_after)
        with suppress(StoreError):  # the next tick knows what to do about it
            spec = submission.read_spec(supervisor.store)
            if spec is not None and spec != supervisor.spec:
                supervisor = replace(supervisor, spec=spec)


@contextmanager
def told_how_to_come_back(name: str) -> Iterator[None]:
    """Ctrl-C ends the watching, not the run; say so. SIGTERM and SIGHUP hand the run to the background.

    With those two nobody is there to type the next command. All three stay with whoever took or ignored them
    before: `nohup`, or a program that calls this one and ends run and cluster itself.
    """
    sent: list[int] = []

    def leave(number: int, _: Any) -> None:
        sent.append(number)
        raise KeyboardInterrupt

    ours = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    leaves_it = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    except BaseException as error:  # a terminal that was closed makes errors of its own on the way here
        if sent:
            _say(*_handed_over(name), f"end it: steadyray job stop {name}")
        elif isinstance(error, KeyboardInterrupt) and leaves_it:
            _say(*_left_alone(name), f"end it: steadyray job stop {name}")
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _say(*lines: str) -> None:
    try:
        for line in lines:
            note(line)
    except OSError:  # the terminal is gone, and what else is said until the end must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _handed_over(name: str) -> list[str]:
    try:
        log, word = supervise_in_background(name)
    except OpsError as error:
        return [str(error), *_left_alone(name)]
    return [
        f"run {name} is looked after in the background (log: {log})",
        f"run {name}: {word}",
        f"attach again: steadyray job run {name}",
    ]


def _left_alone(name: str) -> list[str]:
    return [
        f"the job of run {name} goes on, but nobody looks after it now: it is not submitted again if it is "
        "lost, no limit ends it, and its end is recorded only when somebody looks",
        f"attach again: steadyray job run {name}",
        f"leave it overnight: steadyray job submit {name}",
    ]


def open_supervisor(name: str) -> Supervisor:
    return _supervisor(name, _store(name))


def _supervisor(name: str, store: RunStore) -> Supervisor:
    spec = submission.find_spec(store, name)
    made_by = maker(spec.cluster, spec.token_file)
    return Supervisor(
        spec,
        store,
        made_by,
        SystemClock(),
        environment=made_by.environment(),
        hidden=(*made_by.hidden(), *places.hidden()),
        observe=observes(),
        fleet=fleet_of(places.root_of(name)),
    )


def _store(name: str) -> RunStore:
    """The store of an existing run; raises NotFoundError without making a folder for it."""
    if name not in places.names():
        others = ", ".join(places.names()[-5:]) or "none"
        raise NotFoundError(f"there is no run called {name} (there is: {others})", hint="steadyray job list")
    return places.store(name)


def _numbers(newest: int) -> str:
    return "none yet" if newest == 0 else "1" if newest == 1 else f"1 to {newest}"


@contextmanager
def _code_of(store: RunStore) -> Iterator[str]:
    """A folder with the run's own code; empty where that is not known."""
    with tempfile.TemporaryDirectory(prefix="steadyray-") as folder:
        with suppress(StoreError, zipfile.BadZipFile):
            spec = submission.read_spec(store)
            if spec is not None and (code := store.get(spec.code_path)) is not None:
                packing.unpack(code, Path(folder))
        yield folder


def _last_error(said: str) -> str:
    """Name and message of the error that ended a Python program, without its traceback."""
    starts = [found.start() for found in re.finditer(r"^[\w.]+(?:Error|Exception)\b", said, re.MULTILINE)]
    return (said[starts[-1] :] if starts else said).strip()
