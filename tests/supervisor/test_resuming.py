"""A run that is resumed with other code and options: whoever looks after it runs these, nothing is lost."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from mortal_store import Killed, MortalStore
from steadyray import contract

from conftest import Desk
from ops import submission
from ops.adapters.fakes import FakeClock, FakeCluster, FakeMaker
from ops.cli.job import ticks
from ops.errors import RefusedError, UsageError
from ops.policy.model import Budgets, JobStatus
from ops.spec import RunSpec
from ops.supervise import Supervisor

OLD = RunSpec(name="r", entrypoint=("python", "t.py"), code_hash="old", secret_env=(), created=1_000_000.0)
NEW = OLD.model_copy(update={"code_hash": "new", "budgets": Budgets(time_seconds=60.0), "restart_ok": True})


class Team:
    """Supervisors over one store and one fake cluster."""

    def __init__(self) -> None:
        self.store, self.clock, self.cluster = MortalStore(), FakeClock(), FakeCluster()
        submission.create(self.store, self.clock, OLD, b"old code")

    def fresh(self) -> Supervisor:
        spec = submission.find_spec(self.store, "r")
        return Supervisor(spec, self.store, FakeMaker(self.cluster), self.clock)

    def fail(self) -> None:
        """The newest attempt ends by a fault of the script, and so does the run."""
        supervisor = self.fresh()
        for _ in range(3):
            supervisor.tick()
        (job,) = self.cluster.running()
        self.cluster.logs[job] = "Traceback (most recent call last):\n  File 't.py'\nValueError: bug\n"
        self.cluster.move(job, JobStatus.PENDING, JobStatus.RUNNING)
        self.cluster.move(job, JobStatus.RUNNING, JobStatus.FAILED, exit_code=1)
        assert supervisor.tick().decision.reason == "NotRetried"

    def code_of(self, attempt: int) -> str:
        """Hash of the code that an attempt was submitted with."""
        (job,) = [r for name, r in self.cluster.requests.items() if name.endswith(f"-{attempt}")]
        uri: str = job.runtime_env["working_dir"]
        return uri.removeprefix("gcs://_ray_pkg_").removesuffix(".zip")


@pytest.fixture
def team() -> Team:
    return Team()


def test_a_resumed_run_runs_the_new_code_and_keeps_the_old(team: Team) -> None:
    team.fail()
    submission.reopen(team.store, team.clock, NEW, b"new code")
    team.fail()
    assert (team.code_of(1), team.code_of(2)) == ("old", "new")
    assert team.cluster.packages["_ray_pkg_new.zip"] == b"new code"
    assert {"code/old.zip", "code/new.zip", "results/0001.json"} <= set(team.store.list())
    assert json.loads(team.store.get("results/0001.spec.json") or b"")["code_hash"] == "old"
    assert submission.find_spec(team.store, "r") == NEW


def test_without_new_code_the_old_is_run_again(team: Team) -> None:
    team.fail()
    submission.reopen(team.store, team.clock, OLD)
    team.fail()
    assert team.code_of(2) == "old"
    assert "results/0001.spec.json" not in team.store.list()


def test_a_supervisor_that_slept_while_the_run_ended_and_was_resumed_runs_the_new_code(team: Team) -> None:
    slow = ticks(team.fresh())
    for _ in range(3):
        next(slow)
    team.fail()
    submission.reopen(team.store, team.clock, NEW, b"new code")
    for _ in range(3):
        next(slow)
    assert team.code_of(2) == "new"


@pytest.mark.parametrize("end", [Killed, KeyboardInterrupt])
@pytest.mark.parametrize("fuse", range(1, 15))
def test_a_resumer_that_dies_anywhere_leaves_a_run_that_can_be_resumed_again(
    team: Team, fuse: int, end: type[BaseException]
) -> None:
    team.fail()
    team.store.fuse, team.store.ends_by = fuse, end
    with pytest.raises(end):
        submission.reopen(team.store, team.clock, NEW, b"new code")
    team.store.fuse = -1
    submission.reopen(team.store, team.clock, NEW, b"new code")
    team.fail()
    assert team.code_of(2) == "new"
    assert json.loads(team.store.get("results/0001.spec.json") or b"")["code_hash"] == "old"


def test_code_and_options_of_an_unfinished_run_stay(team: Team) -> None:
    with pytest.raises(RefusedError, match="not finished") as caught:
        submission.reopen(team.store, team.clock, NEW, b"new code")
    assert "steadyray job stop r" in caught.value.hint
    assert submission.find_spec(team.store, "r") == OLD


def test_a_run_that_has_succeeded_is_not_resumed(team: Team) -> None:
    team.store.put(contract.RESULT, b'{"state": "Succeeded"}')
    with pytest.raises(RefusedError, match="has succeeded"):
        submission.reopen(team.store, team.clock, NEW, b"new code")
    assert submission.find_spec(team.store, "r") == OLD


def test_a_secret_does_not_enter_by_a_resume_either(team: Team) -> None:
    team.fail()
    with pytest.raises(UsageError, match="API_TOKEN"):
        submission.reopen(team.store, team.clock, OLD.model_copy(update={"env": {"API_TOKEN": "abc12345"}}))
    assert submission.find_spec(team.store, "r") == OLD


def test_the_time_limit_counts_from_the_resume(team: Team) -> None:
    team.fail()
    team.clock.sleep(3600.0)
    limited = replace(Budgets(), time_seconds=60.0)
    submission.reopen(team.store, team.clock, OLD.model_copy(update={"budgets": limited}))
    supervisor = team.fresh()
    assert supervisor.tick().decision.reason == "Resumed"
    team.clock.sleep(61.0)
    assert supervisor.tick().decision.reason == "TimeLimit"


@pytest.mark.ray
def test_the_corrected_script_of_a_failed_run_goes_on_where_it_was(desk: Desk) -> None:
    text = "import os, pathlib\nkept = pathlib.Path(os.environ['STEADYRAY_RUN_DIR'], 'kept')\n"
    desk.script("train.py", text + "kept.write_text('from attempt 1')\nraise ValueError('my bug')\n")
    assert desk.run(*desk.job("mended"), "train.py").returncode == 1
    desk.script("train.py", text + "print('found', kept.read_text(), os.environ['PACE'])\n")
    unchanged = desk.run("job", "resume", "mended")
    assert (unchanged.returncode, desk.attempts("mended")) == (1, 2), "the code of its start"
    words = ("--working-dir", str(desk.folder), "--env", "PACE=slow", "--time-limit", "100")
    answer = desk.run("job", "resume", "mended", *words)
    assert answer.returncode == 0, answer.stderr
    assert "found from attempt 1 slow" in desk.run("job", "logs", "mended").stdout
    assert len(list(Path(desk.directory("mended"), "code").glob("*.zip"))) == 2
    code = desk.directory("mended") / "code" / f"{desk.read('mended', 'spec.json')['code_hash']}.zip"
    assert b"PACE" in zipfile.ZipFile(io.BytesIO(code.read_bytes())).read("train.py")
