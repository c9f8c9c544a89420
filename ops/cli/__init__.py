"""The command `steadyray`: one module a noun, and the one place that turns errors into exit codes.

0 done or nothing to do; 1 expected failure; 2 usage; 3 refused by policy or missing confirmation; 4 timed
out; 5 not authorised by the cluster; 70 bug (a report file is written); 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import os
import platform
import shlex
import sys
import time
import traceback
from importlib import metadata
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from ops.cli import audit, bench, cluster, explain, fleet, job, node, report
from ops.config import home
from ops.errors import OpsError
from ops.output import note
from ops.policy.redaction import HIDDEN, names_secret, redact

EXIT_BUG = 70
EXIT_INTERRUPTED = 130
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
PACKAGES = ("steadyray-ops", "steadyray", "ray", "torch")
"""Whose versions a bug report needs."""

app = typer.Typer(
    name="steadyray",
    help="Keeps PyTorch training on Ray running without a human.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cluster.app, name="cluster")
app.add_typer(node.app, name="node")
app.add_typer(job.app, name="job")
app.add_typer(fleet.app, name="fleet")
app.add_typer(bench.app, name="bench")
app.command("report")(report.report)
app.command("audit")(audit.audit)
app.command("explain")(explain.explain)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"steadyray {_version('steadyray-ops')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Holds what stands before the nouns."""


def main(argv: list[str] | None = None) -> None:
    """Entry point of the command; never returns."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # scripts' words may have no UTF-8; stderr is so already
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(argv))


def run(argv: list[str] | None = None) -> int:
    """Runs one command line and gives its exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = app(args=argv, standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        if callable(show := getattr(error, "show", None)):
            show()  # usage errors show the usage as well
        else:
            note(str(error))
        return error.exit_code
    except (Abort, KeyboardInterrupt):
        note("interrupted")
        return EXIT_INTERRUPTED
    except OpsError as error:
        note(f"error: {redact(str(error))}")
        if error.hint:
            note(f"hint:  {redact(error.hint)}")
        return error.exit_code
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # `steadyray … | head`, of which Typer makes a 1
            return 0
        raise
    except OSError as error:
        return no_room(error) if error.errno in NO_ROOM else bug(error, words)
    except Exception as error:  # noqa: BLE001  the one handler at the very top
        return bug(error, words)


def no_room(error: OSError) -> int:
    """A disk that is full is no fault of ours, be it that of the home folder or of a file behind stdout."""
    note(f"error: cannot write {error.filename or 'the output'}: {error.strerror}")
    note("hint:  make room there, then type it again")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails once more at its exit
    return 1


def bug(error: Exception, argv: list[str]) -> int:
    """Say where the report is; the traceback itself helps nobody on a terminal."""
    path = home() / "bugs" / f"{time.strftime('%Y%m%d-%H%M%S')}.txt"
    text = "\n".join([*circumstances(argv), "", redact("".join(traceback.format_exception(error)))])
    note(f"bug: {type(error).__name__}: {redact(str(error))}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        note(f"hint:  report it on the repository's issues page with {path}, once you have read through it")
    except OSError:
        note(text)
    return EXIT_BUG


def circumstances(argv: list[str]) -> list[str]:
    """What was typed, without secrets, and on what it ran."""
    return [
        f"command: steadyray {shlex.join(_shown(argv))}",
        f"python: {platform.python_version()}",
        f"platform: {platform.platform()}",
        *(f"{package}: {_version(package)}" for package in PACKAGES),
    ]


def _shown(argv: list[str]) -> list[str]:
    """Also what follows `--password` and its like is a secret."""
    before = ["", *argv]
    return [
        HIDDEN if word.startswith("-") and names_secret(word) and "=" not in word else redact(value)
        for word, value in zip(before, argv, strict=False)
    ]
