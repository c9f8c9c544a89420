"""The supervisor itself is killed, doubled, sent away: the run has one writer and one true end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from steadyray import contract

from conftest import Desk, driver_of, wait_for
from ops.adapters.clusters import LocalMaker
from ops.cli.job import told_how_to_come_back


def kill_when(desk: Desk, process: subprocess.Popen[str], run: str, path: str) -> None:
    """SIGKILL the supervisor as soon as a file of the run appears."""
    target = desk.directory(run) / path
    while not target.exists():
        assert process.poll() is None, "it ended before"
        time.sleep(0.001)
    process.kill()
    process.wait()


PLACES = [
    ("lease", "attempts/0001/lease.json"),
    ("claimed", "events/supervisor-attempt-0001/00000002.json"),
    ("submitted", "events/supervisor-attempt-0001/00000003.json"),
    ("started", "attempts/0001/started.json"),
]


@pytest.mark.ray
@pytest.mark.parametrize(("name", "path"), PLACES, ids=[p[0] for p in PLACES])
def test_a_supervisor_killed_around_the_submission_is_continued_by_the_next(
    desk: Desk, checkpointing: str, name: str, path: str
) -> None:
    run = f"killed-{name}"
    first = desk.start(*desk.job(run), checkpointing, "3")
    kill_when(desk, first, run, path)
    second = desk.run("job", "run", run)
    assert second.returncode == 0, second.stderr
    assert desk.attempts(run) == 1
    assert len((desk.directory(run) / "trace.txt").read_text().splitlines()) == 1, "it ran once"
    for kind in ("AttemptClaimed", "AttemptSubmitted", "AttemptRunning", "AttemptEnded", "RunFinished"):
        assert len(desk.events(run, kind)) == 1, kind


@pytest.mark.ray
def test_two_supervisors_of_one_run_make_one_job_and_tell_the_same_end(
    desk: Desk, checkpointing: str
) -> None:
    """B05: neither overwrites the other's good status, and a loss is answered once."""
    gate = desk.directory("double") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("3")
    pair = [desk.start(*desk.job("double"), checkpointing, "6") for _ in range(2)]
    driver = driver_of(desk, "double", 1)
    wait_for(lambda: desk.read("double", "attempts/0001/progress.json").get("step") == 3, "step 3")
    os.kill(driver, signal.SIGKILL)
    gate.write_text("99")
    for process in pair:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert desk.attempts("double") == 2
    trace = [line.split()[0] for line in (desk.directory("double") / "trace.txt").read_text().splitlines()]
    assert trace == ["1", "2"]
    assert len(desk.events("double", "ActionTaken")) == 1


@pytest.mark.ray
def test_a_job_that_ends_while_nobody_watches_is_recorded_as_it_ended(desk: Desk) -> None:
    """B08."""
    script = desk.script("train.py", "import time\ntime.sleep(1)\nraise ValueError('in the dark')\n")
    watching = desk.start(*desk.job("dark"), script)
    kill_when(desk, watching, "dark", contract.started(1))
    cluster = LocalMaker(desk.cluster).connect()
    submission = desk.read("dark", contract.lease(1))["submission_id"]
    wait_for(lambda: (job := cluster.job(submission)) and job.status.ended, "the job's end")
    assert desk.read("dark", "result.json") == {}
    assert desk.run("job", "run", "dark").returncode == 1
    assert desk.read("dark", "result.json")["failure_class"] == "UserError"


@pytest.mark.ray
def test_ctrl_c_leaves_the_run_and_says_what_is_not_done_and_what_to_type(
    desk: Desk, checkpointing: str
) -> None:
    watching = desk.start(*desk.job("left"), checkpointing, "15")
    driver_of(desk, "left", 1)
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=30)
    assert watching.returncode == 130
    assert "nobody looks after it now: it is not submitted again if it is lost" in err
    for words in ("job run left", "job submit left", "job stop left"):
        assert f"steadyray {words}" in err
    for command in ("status", "explain"):
        told = desk.run("job", command, "left", "-o", "json").stdout
        assert "Nobody looks after this run now; type: steadyray job run left" in told
    assert desk.run("job", "run", "left").returncode == 0
    assert desk.attempts("left") == 1


@pytest.mark.ray
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_sent_away_leaves_the_run_to_a_process_in_the_background(
    desk: Desk, checkpointing: str, sent: signal.Signals
) -> None:
    run = f"left-{sent.name.lower()}"
    watching = desk.start(*desk.job(run), checkpointing, "15")
    driver = driver_of(desk, run, 1)
    watching.send_signal(sent)
    _, err = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert f"run {run} is looked after in the background" in err
    assert f"steadyray job run {run}" in err
    os.kill(driver, signal.SIGKILL)
    wait_for(lambda: desk.read(run, "result.json"), "an end that nobody watches")
    assert desk.read(run, "result.json")["state"] == "Succeeded"
    assert desk.attempts(run) == 2, "the loss was mended"


OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""As a login does: who closes this terminal sends SIGHUP."""


@pytest.mark.ray
def test_a_terminal_that_is_closed_leaves_the_run_to_a_process_in_the_background(
    desk: Desk, checkpointing: str
) -> None:
    ours, theirs = os.openpty()
    words = [sys.executable, "-c", OWN_TERMINAL, sys.executable, "-P", "-m", "ops.cli", *desk.job("closed")]
    watching = subprocess.Popen(
        [*words, checkpointing, "15"],
        cwd=desk.folder,
        env={**os.environ, "STEADYRAY_HOME": str(desk.home), "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    driver_of(desk, "closed", 1)
    os.close(ours)
    assert watching.wait(timeout=60) == 130
    assert "attempt 1" in (desk.home / "supervisors" / "closed.log").read_text()
    wait_for(lambda: desk.read("closed", "result.json"), "an end that nobody watches")
    assert desk.read("closed", "result.json")["state"] == "Succeeded"


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.default_int_handler], ids=["ignored", "taken"])
def test_a_signal_that_somebody_else_has_taken_stays_theirs(before: Any) -> None:
    """`nohup` ignores SIGHUP; `make demo` catches it, and takes its cluster away."""
    previous = signal.signal(signal.SIGHUP, before)
    try:
        with told_how_to_come_back("r"):
            assert signal.getsignal(signal.SIGHUP) is before
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is before
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.ray
def test_submit_returns_at_once_and_stop_and_resume_work_from_elsewhere(
    desk: Desk, checkpointing: str
) -> None:
    gate = desk.directory("night") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("3")
    words = ("job", "submit", *desk.job("night")[2:])
    submitted = desk.run(*words, checkpointing, "5")
    assert (submitted.returncode, submitted.stdout.strip()) == (0, "night")
    driver_of(desk, "night", 1)
    assert "night" in desk.run("job", "list").stdout
    assert desk.run("job", "stop", "night").returncode == 0
    assert desk.read("night", "result.json")["state"] == "Stopped"
    gate.write_text("99")
    assert desk.run("job", "resume", "night").returncode == 0
    assert desk.read("night", "result.json")["state"] == "Succeeded"
    begun = (desk.directory("night") / "trace.txt").read_text().splitlines()
    assert (len(begun), int(begun[1].split()[1])) == (2, 3), "it went on from its checkpoint"
    assert desk.run("job", "resume", "night").returncode == 3, "what has succeeded is not redone"


@pytest.mark.ray
def test_a_resource_that_cannot_be_had_is_waited_for_by_name_until_the_limit(desk: Desk) -> None:
    """B22; and the given-up job is really gone, which Ray's own stop does not do."""
    script = desk.script("train.py", "print('x')")
    seen = desk.run(*desk.job("greedy", "--driver-resource", "unobtainium=2", "--wait-limit", "6"), script)
    assert seen.returncode == 4
    assert "unobtainium 2, the cluster has 0" in seen.stderr
    result = desk.read("greedy", "result.json")
    assert (result["state"], result["failure_class"]) == ("Failed", "CapacityMissing")
    assert desk.events("greedy", "Waiting")[0]["data"]["reason"] == "CapacityMissing"
    assert desk.attempts("greedy") == 1
    submission = desk.read("greedy", contract.lease(1))["submission_id"]
    job = LocalMaker(desk.cluster).connect().job(submission)
    assert job is not None
    assert job.status.ended


@pytest.mark.ray
def test_explain_names_evidence_class_rule_decision_and_what_comes_next(desk: Desk) -> None:
    script = desk.script("train.py", "raise KeyError('layer')")
    desk.run(*desk.job("explained"), script)
    told = desk.run("job", "explain", "explained")
    assert told.returncode == 0
    for word in (
        "UserError",
        "OwnException",
        "KeyError: 'layer'",
        "NotRetried",
        "next:",
        "advice:",
        "driver.log",
    ):
        assert word in told.stdout


@pytest.mark.ray
def test_a_run_of_another_command_under_a_living_name_is_refused(desk: Desk, checkpointing: str) -> None:
    gate = desk.directory("taken") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("1")
    watching = desk.start(*desk.job("taken"), checkpointing, "3")
    driver_of(desk, "taken", 1)
    other = desk.run(*desk.job("taken"), checkpointing, "21")
    gate.write_text("99")
    assert other.returncode == 3
    assert "is another command" in other.stderr
    watching.communicate(timeout=120)
    assert desk.attempts("taken") == 1
