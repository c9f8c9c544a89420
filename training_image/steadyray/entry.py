"""The first process of every attempt: claims the start, says where to resume, becomes the user's command.

Standard library only, but where the run directory is in a bucket. The supervisor ships this file and
contract.py inside the code of each job, since a cluster's image need not have steadyray installed; hence
`python _steadyray_entry/entry.py`.

A head that lost its state forgets submission ids, so the id alone does not keep a job from being started
twice. The exclusive create of `started.json` in the run directory does: the loser leaves with exit code 75.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

if __package__:
    from steadyray import contract
else:  # shipped next to contract.py; Python has put this folder first on the path
    import contract  # type: ignore[import-not-found,no-redef]

EXIT_ALREADY_STARTED = 75
"""EX_TEMPFAIL of sysexits.h; the supervisor knows it together with the words `already started`."""
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126


def main(argv: list[str]) -> int:
    """`entry.py RUN ATTEMPT RUN_DIR -- COMMAND...`; returns only where the command cannot be run."""
    run, attempt, run_dir = argv[0], int(argv[1]), Path(argv[2])
    command = argv[argv.index("--") + 1 :]
    if "://" in argv[2]:
        return start_from_bucket(run, attempt, argv[2], command)
    end_leftovers(run_dir, attempt)
    if not claim_start(run_dir, attempt):
        return already_started(run, attempt)
    return begin(run, attempt, str(run_dir), str(newest_checkpoint(run_dir) or ""), command)


def already_started(run: str, attempt: int) -> int:
    say(f"attempt {attempt} of run {run} was already started by another process; this one leaves")
    return EXIT_ALREADY_STARTED


def begin(run: str, attempt: int, run_dir: str, resume_from: str, command: list[str]) -> int:
    os.environ[contract.ENV_RUN] = run
    os.environ[contract.ENV_ATTEMPT] = str(attempt)
    os.environ[contract.ENV_RUN_DIR] = run_dir
    os.environ[contract.ENV_RESUME_FROM] = resume_from
    os.environ["PYTHONUNBUFFERED"] = "1"
    return become(command)


def start_from_bucket(run: str, attempt: int, url: str, command: list[str]) -> int:
    """The same by the library of the cluster's image: a bucket cannot be had with the standard library."""
    try:
        import obstore  # noqa: F401
        import tenacity  # noqa: F401

        from steadyray.bucket_start import claim, leftovers, newest
    except ImportError as error:
        say(f"run storage {url}: {error}; the cluster needs: pip install 'steadyray[bucket]'")
        return EXIT_NOT_FOUND
    for path, old in leftovers(url, attempt):
        end_leftover(path, old)
    if not claim(url, attempt, json.dumps(identity()).encode()):
        return already_started(run, attempt)
    return begin(run, attempt, url, newest(url), command)


def become(command: list[str]) -> int:
    """Replace this process, so that exit code, signals and pid are the command's own."""
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        say(f"{command[0]}: not found")
        return EXIT_NOT_FOUND
    except OSError as error:
        say(f"{command[0]}: cannot be executed: {error.strerror}")
        return EXIT_NOT_EXECUTABLE


def claim_start(run_dir: Path, attempt: int) -> bool:
    """True for exactly one process. The content appears with the name, by a link to a finished file."""
    path = run_dir / contract.started(attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = path.with_name(f".started-{socket.gethostname()}-{os.getpid()}")
    mine.write_text(json.dumps(identity()))
    try:
        os.link(mine, path)
    except FileExistsError:
        return False
    finally:
        mine.unlink(missing_ok=True)
    return True


def identity() -> dict[str, object]:
    """What tells this process from any other, also from a later one with the same pid."""
    return {
        "pid": os.getpid(),
        "process_start": process_start(os.getpid()),
        "boot": boot_id(),
        "host": socket.gethostname(),
        "time": time.time(),
    }


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_start(pid: int) -> str:
    """Start time in clock ticks since boot; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def end_leftovers(run_dir: Path, attempt: int) -> None:
    """End drivers of earlier attempts that still live on this machine, as one does whose head died alone.

    Ray leaves such a driver running for minutes; two at once would be two writers. Only a process with the
    recorded boot, pid and start time is ended, with its group: Ray gives each driver a session of its own.
    """
    for path in sorted((run_dir / "attempts").glob("*/started.json")):
        if path.parent.name >= Path(contract.attempt_dir(attempt)).name:
            continue
        with contextlib.suppress(OSError):
            end_leftover(path.parent.name, path.read_bytes())


def end_leftover(attempt: str, started: bytes) -> None:
    # scripts may write there too, and what makes no sense must not keep this attempt from its start
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        old = json.loads(started)
        pid = int(old["pid"])
        same = old["boot"] == boot_id() and old["process_start"] == process_start(pid) != ""
        if same and pid not in (os.getpid(), os.getppid()):
            say(f"ends process {pid}, which is left of attempt {attempt}")
            end_group(pid)


def end_group(pid: int) -> None:
    group = os.getpgid(pid)
    if group == os.getpgid(0):
        os.kill(pid, signal.SIGKILL)
    else:
        os.killpg(group, signal.SIGKILL)


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The newest folder whose manifest is complete and whose files have their sizes.

    Hashes are checked by whoever loads it.
    """
    folders = (run_dir / contract.CHECKPOINTS).glob("*")
    found = [(order, f) for f in folders if (order := contract.lineage(f.name)) and complete(f)]
    return max(found)[1] if found else None


def complete(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / contract.MANIFEST).read_text())
        files = manifest["files"]
        return bool(files) and all((folder / f).stat().st_size == files[f]["bytes"] for f in files)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def say(message: str) -> None:
    print(f"steadyray: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
