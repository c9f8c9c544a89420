"""Runs whose folder was moved, whose cluster cannot be made again, whose secrets are not at hand here."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from steadyray import contract

from conftest import Desk
from ops import explain, submission
from ops.adapters import local_cluster
from ops.adapters.clusters import LocalMaker
from ops.adapters.fakes import FakeClock, FakeCluster, FakeMaker
from ops.adapters.run_store import open_store
from ops.errors import ClusterError, NotFoundError
from ops.policy.model import Action, Budgets, JobStatus, RunState
from ops.ports import Remains
from ops.profile import Profile
from ops.spec import RunSpec
from ops.supervise import REMAKE_PAUSE_SECONDS, Supervisor, Tick

SECRET = "zz-value-of-a-secret-4711"


def spec(clock: FakeClock, **more: Any) -> RunSpec:
    return RunSpec(
        schema=1,
        name="r",
        entrypoint=("python", "t.py"),
        code_hash="c",
        created=clock.now(),
        budgets=Budgets(blind_seconds=60.0),
        **more,
    )


@dataclass
class Team:
    """Supervisors over one fake cluster and real folders."""

    cluster: FakeCluster
    clock: FakeClock
    maker: FakeMaker

    def at(self, root: Path, **more: Any) -> Supervisor:
        """Who looks after the run under `root`, however that is spelled; makes it if it is not there."""
        store = open_store(str(root), "r")
        if (wanted := submission.read_spec(store)) is None:
            wanted = spec(self.clock, **more)
            submission.create(store, self.clock, wanted, b"zip")
        return Supervisor(wanted, store, self.maker, self.clock)

    def ticks(self, supervisor: Supervisor, count: int) -> list[Tick]:
        seen = []
        for _ in range(count):
            seen.append(supervisor.tick())
            self.clock.sleep(1.0)
        return seen

    def running(self) -> str:
        (job,) = self.cluster.jobs
        self.cluster.move(job, JobStatus.PENDING, JobStatus.RUNNING)
        return job


@pytest.fixture
def team() -> Team:
    cluster = FakeCluster()
    return Team(cluster, FakeClock(), FakeMaker(cluster))


# --- the same run by another path -----------------------------------------------------------------------
def linked(root: Path) -> Path:
    (root.parent / "link").symlink_to(root)
    return root.parent / "link"


def dotted(root: Path) -> Path:
    return root / "x" / ".."


def moved(root: Path) -> Path:
    shutil.move(root, root.parent / "elsewhere")
    return root.parent / "elsewhere"


@pytest.mark.parametrize("spelled", [linked, dotted, moved])
def test_another_spelling_of_the_runs_folder_is_the_same_job(
    team: Team, tmp_path: Path, spelled: Callable[[Path], Path]
) -> None:
    root = tmp_path / "runs"
    team.ticks(team.at(root), 2)
    job = team.running()
    again = team.at(spelled(root))
    team.ticks(again, 10)
    assert list(team.cluster.jobs) == [job], "no second writer"
    assert again.gatherer.id(1) == job


def test_a_folder_has_one_url_by_symlink_and_dots(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    url = open_store(str(root), "r").url
    assert {open_store(str(other), "r").url for other in (linked(root), dotted(root))} == {url}


# --- a cluster that is not made at once ------------------------------------------------------------------
@dataclass
class Unlucky(FakeMaker):
    """Cannot make the cluster `failures` times, and has nothing to connect to in between."""

    failures: int = 0

    def connect(self) -> FakeCluster:
        if self.is_gone:
            raise NotFoundError("no cluster here")
        return super().connect()

    def make(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ClusterError("port 8265 is taken")
        super().make()


def lost(team: Team, root: Path, failures: int) -> Supervisor:
    team.maker = Unlucky(team.cluster, failures=failures)
    supervisor = team.at(root)
    team.ticks(supervisor, 2)
    team.running()
    team.cluster.silent, team.maker.is_gone = True, True
    return supervisor


def test_a_cluster_that_is_made_only_at_the_third_try_costs_two_pauses_and_not_the_run(
    team: Team, tmp_path: Path
) -> None:
    supervisor = lost(team, tmp_path, failures=2)
    ticks = team.ticks(supervisor, int(3 * REMAKE_PAUSE_SECONDS))
    assert "port 8265 is taken" in ticks[1].snapshot.message
    assert team.maker.made == 1
    assert len(supervisor.store.list("actions")) == 2, "one re-creation, one resubmission"
    assert len(team.cluster.running()) == 1


def test_a_cluster_that_is_never_made_ends_the_run_with_the_reason_within_the_limit(
    team: Team, tmp_path: Path
) -> None:
    supervisor = lost(team, tmp_path, failures=10**6)
    ticks = team.ticks(supervisor, 75)
    assert ticks[-1].snapshot.state is RunState.FAILED
    assert "port 8265 is taken" in ticks[-1].snapshot.message
    assert Action.FINISH not in {t.decision.action for t in ticks[:59]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEADYRAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def leased(team: Team, home: Path, cluster: str) -> None:
    """A run whose attempt was handed to a cluster that is not there."""
    supervisor = Supervisor(
        spec(team.clock, cluster=cluster), open_store(str(home / "runs"), "r"), team.maker, team.clock
    )
    submission.create(supervisor.store, team.clock, supervisor.spec, b"zip")
    team.ticks(supervisor, 2)


def test_a_local_cluster_of_which_nothing_is_left_is_gone_and_an_unknown_one_is_silent(
    home: Path, small_profile: Callable[[dict[str, Any]], Profile]
) -> None:
    maker = LocalMaker("ended")
    assert maker.remains() is Remains.KEPT, "this home never knew it"
    local_cluster.down("ended")
    assert maker.remains() is Remains.NOTHING
    with pytest.raises(ClusterError, match="steadyray cluster up --name ended"):
        maker.make()


@pytest.mark.parametrize(("known", "code"), [(True, 0), (False, 4)], ids=["gone", "silent"])
def test_job_stop_ends_when_nothing_is_left_of_the_cluster(
    team: Team, home: Path, tmp_path: Path, known: bool, code: int
) -> None:
    leased(team, home, "vanished")
    if known:
        local_cluster.down("vanished")
    desk = Desk(tmp_path, home, "vanished")
    try:
        answer = desk.run("job", "stop", "r", seconds=60)
    finally:
        desk.close()
    assert answer.returncode == code, answer.stderr
    assert desk.read("r", "stop.json")
    assert desk.read("r", "result.json").get("state") == ("Stopped" if known else None)
    assert known or "the stop is noted" in answer.stderr


# --- secrets that are not set here -----------------------------------------------------------------------
def everything(supervisor: Supervisor, ticks: list[Tick]) -> str:
    files = [(supervisor.store.get(path) or b"").decode() for path in supervisor.store.list()]
    told = list(explain.log_lines(supervisor, follow=False, attempt=None, lines=100))
    return "\n".join([*files, *told, *(repr(t) for t in ticks), json.dumps(explain.explain(supervisor))])


def failing(team: Team, root: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """A run that was submitted with the secret set, and failed with its value in log and message."""
    monkeypatch.setenv("MY_SETTING", SECRET)
    first = team.at(root, secret_env=("MY_SETTING",))
    team.ticks(first, 2)
    job = team.running()
    log = f"using {SECRET}\nTraceback (most recent call last):\n  File 't'\nValueError: {SECRET}\n"
    team.cluster.logs[job] = log
    team.cluster.jobs[job] = replace(team.cluster.jobs[job], driver_node="node1")
    return first


@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_a_supervisor_without_the_secret_neither_stores_nor_shows_the_log_and_still_judges(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    failing(team, tmp_path, monkeypatch)
    os.environ.pop("MY_SETTING")
    if value is not None:
        monkeypatch.setenv("MY_SETTING", value)
    later = team.at(tmp_path)
    ticks = team.ticks(later, 4)
    (job,) = team.cluster.jobs
    team.cluster.move(job, JobStatus.RUNNING, JobStatus.FAILED, message=f"last logs: {SECRET}", exit_code=1)
    ticks += team.ticks(later, 10)
    text = everything(later, ticks)
    assert SECRET not in text
    assert "withheld: set MY_SETTING to see it" in text
    result = later.record.read(contract.RESULT) or {}
    assert (result["state"], result["failure_class"]) == ("Failed", "UserError"), "the rules heard it all"


def test_the_log_that_a_supervisor_with_the_secret_saved_is_kept(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = failing(team, tmp_path, monkeypatch)
    team.ticks(first, 4)
    path = contract.evidence(1, "driver.log")
    saved = first.store.get(path) or b""
    assert b"using [redacted]" in saved
    monkeypatch.delenv("MY_SETTING")
    team.cluster.logs[next(iter(team.cluster.jobs))] += f"again {SECRET}\n"
    later = team.at(tmp_path)
    team.ticks(later, 10)
    assert later.store.get(path) == saved
