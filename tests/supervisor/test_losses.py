"""Attempts lost from outside: retried where it helps, from the last checkpoint, evidence saved first."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from conftest import Desk, driver_of, wait_for
from ops.adapters import local_cluster

FOREVER = "import os, time\nprint('started', os.environ['STEADYRAY_ATTEMPT'], flush=True)\n"
SHORT_ON_RETRY = FOREVER + "time.sleep(0.2 if os.environ['STEADYRAY_ATTEMPT'] != '1' else 3600)\n"


@pytest.mark.ray
def test_a_plain_script_that_is_killed_once_is_started_again_and_told_what_it_lost(desk: Desk) -> None:
    script = desk.script("plain.py", SHORT_ON_RETRY)
    watching = desk.start(*desk.job("plain-once"), script)
    os.kill(driver_of(desk, "plain-once", 1), signal.SIGKILL)
    _, err = watching.communicate(timeout=120)
    assert watching.returncode == 0, err
    action = desk.events("plain-once", "ActionTaken")[0]["data"]
    assert action["action"] == "Resubmit"
    assert "--restart-ok" in action["message"], "it is told that it starts over"
    assert desk.events("plain-once", "IncidentOpened")[0]["data"]["failure_class"] == "Unknown"
    assert desk.attempts("plain-once") == 2


@pytest.mark.ray
def test_a_script_that_starts_over_each_time_is_stopped_at_the_second_loss(desk: Desk) -> None:
    script = desk.script("plain.py", FOREVER + "time.sleep(3600)\n")
    watching = desk.start(*desk.job("plain-twice"), script)
    for attempt in (1, 2):
        os.kill(driver_of(desk, "plain-twice", attempt), signal.SIGKILL)
    _, err = watching.communicate(timeout=120)
    assert watching.returncode == 1
    assert "--restart-ok" in err
    assert desk.attempts("plain-twice") == 2


@pytest.mark.ray
def test_a_killed_driver_continues_from_its_last_checkpoint(desk: Desk, checkpointing: str) -> None:
    """B10: killed at step 20, the next attempt begins after step 20; number and path are visible to it."""
    gate = desk.directory("resumes") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("20")
    watching = desk.start(*desk.job("resumes"), checkpointing, "25")
    wait_for(lambda: desk.read("resumes", "attempts/0001/progress.json").get("step") == 20, "step 20")
    driver = driver_of(desk, "resumes", 1)
    gate.unlink()
    gate.write_text("99")
    os.kill(driver, signal.SIGKILL)
    _, err = watching.communicate(timeout=120)
    assert watching.returncode == 0, err
    begun = [line.split() for line in (desk.directory("resumes") / "trace.txt").read_text().splitlines()]
    assert [b[0] for b in begun] == ["1", "2"]
    assert int(begun[1][1]) >= 20


@pytest.mark.ray
def test_a_half_written_checkpoint_is_passed_over(desk: Desk, checkpointing: str) -> None:
    """B12: no manifest, or a file that is shorter than its manifest says."""
    folder = desk.directory("half") / "checkpoints"
    for step, manifest in ((7, '{"step": 7, "files": {"state": {"bytes": 1}}}'), (9, None)):
        (folder / f"{step:010d}-0001-0001").mkdir(parents=True)
        (folder / f"{step:010d}-0001-0001" / "state").write_text("7")
        if manifest:
            (folder / f"{step:010d}-0001-0001" / "MANIFEST.json").write_text(manifest)
    short = folder / "0000000008-0001-0001"
    short.mkdir()
    (short / "state").write_text("")
    (short / "MANIFEST.json").write_text('{"step": 8, "files": {"state": {"bytes": 99}}}')
    assert desk.run(*desk.job("half"), checkpointing, "10").returncode == 0
    assert (desk.directory("half") / "trace.txt").read_text().split()[1] == "7"


@pytest.mark.ray
def test_the_loss_of_the_drivers_node_leads_to_a_new_attempt_elsewhere(
    desk: Desk, checkpointing: str
) -> None:
    """B51 as well: the log of the lost node was saved before, and can still be read."""
    gate = desk.directory("node-lost") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("5")
    watching = desk.start(*desk.job("node-lost"), checkpointing, "12")
    driver = driver_of(desk, "node-lost", 1)
    wait_for(lambda: desk.read("node-lost", "attempts/0001/progress.json").get("step") == 5, "step 5")
    log = desk.directory("node-lost") / "attempts/0001/evidence/driver.log"
    desk.wait_text(log, "attempt 1 begins")
    assert local_cluster.kill_node(desk.cluster, node_of(driver)) > 0
    gate.write_text("99")
    _, err = watching.communicate(timeout=180)
    assert watching.returncode == 0, err
    incident = desk.events("node-lost", "IncidentOpened")[0]["data"]
    assert (incident["failure_class"], incident["rule"]) == ("DriverLost", "DriverNodeDied")
    assert "attempt 1 begins" in log.read_text()
    assert "attempt 1 begins" in desk.run("job", "logs", "node-lost", "--attempt", "1").stdout
    saved = desk.events("node-lost", "EvidenceSaved")[0]
    assert saved["time"] <= desk.events("node-lost", "AttemptSubmitted")[1]["time"]
    begun = (desk.directory("node-lost") / "trace.txt").read_text().splitlines()
    assert int(begun[1].split()[1]) >= 5, "no step before the checkpoint is redone"


@pytest.mark.ray
def test_a_frozen_driver_is_found_by_the_silence_of_progress_and_log(desk: Desk, checkpointing: str) -> None:
    gate = desk.directory("frozen") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("4")
    watching = desk.start(*desk.job("frozen", "--patience", "3"), checkpointing, "8")
    driver = driver_of(desk, "frozen", 1)
    wait_for(lambda: desk.read("frozen", "attempts/0001/progress.json").get("step") == 4, "step 4")
    os.kill(driver, signal.SIGSTOP)
    gate.write_text("99")
    _, err = watching.communicate(timeout=180)
    assert watching.returncode == 0, err
    assert desk.events("frozen", "IncidentOpened")[0]["data"]["failure_class"] == "Hang"
    assert [a["data"]["action"] for a in desk.events("frozen", "ActionTaken")] == ["Stop", "Resubmit"]
    wait_for(lambda: ended(driver), "the frozen driver is gone")


def node_of(pid: int) -> str:
    """Instance id of the node that a process belongs to, from the marker in its environment."""
    for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        if entry.startswith(b"STEADYRAY_NODE="):
            return entry.decode().rpartition("/")[2]
    raise AssertionError(f"process {pid} belongs to no node")


def ended(pid: int) -> bool:
    """A zombie has ended; where PID 1 does not reap, it stays in the table."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
