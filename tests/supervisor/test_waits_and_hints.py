"""What a person is told of a run that waits or is left alone, and that the trainer's hint is redacted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from steadyray import contract

from ops import explain as explaining
from ops.adapters.fakes import FakeClock, FakeCluster, FakeMaker, MemoryStore
from ops.adapters.run_store import open_store
from ops.policy.model import Budgets, JobStatus
from ops.presence import MARK, SILENT_SECONDS, is_looked_after
from ops.spec import RunSpec
from ops.submission import create
from ops.supervise import Supervisor

SECRET = "hunter2hunter2"
BUDGETS = Budgets()


def supervised(budgets: Budgets = BUDGETS) -> tuple[Supervisor, FakeCluster]:
    store, clock, cluster = MemoryStore(), FakeClock(time.time()), FakeCluster()
    spec = RunSpec(
        name="x",
        entrypoint=("python", "t.py"),
        code_hash="0",
        driver_cpus=4.0,
        budgets=budgets,
        created=clock.now(),
    )
    create(store, clock, spec, b"code")
    return Supervisor(spec, store, FakeMaker(cluster), clock, hidden=(SECRET,)), cluster


def tick(supervisor: Supervisor, times: int = 20) -> None:
    for _ in range(times):
        supervisor.tick()
        supervisor.clock.sleep(1.0)


def test_status_and_explain_say_why_and_since_when_a_run_waits() -> None:
    supervisor, _ = supervised()
    tick(supervisor)
    began = supervisor.clock.now()
    shown = explaining.status(supervisor.store)
    assert (shown["state"], shown["waiting_for"]) == ("Waiting", "CapacityMissing")
    assert began - 20.0 <= shown["waiting_since"] < began
    assert "CPU 4, the cluster has 1" in shown["message"]
    assert "CPU 4, the cluster has 1" in explaining.summary(supervisor.store)["message"]
    story = explaining.explain(supervisor)
    assert story["waiting"]["reason"] == "CapacityMissing"
    assert "waits: CapacityMissing, for " in explaining.as_text(story)


def test_a_run_whose_wait_is_over_waits_no_more() -> None:
    supervisor, cluster = supervised()
    tick(supervisor)
    assert cluster.move(supervisor.gatherer.id(1), JobStatus.PENDING, JobStatus.RUNNING)
    tick(supervisor)
    assert explaining.status(supervisor.store)["waiting_for"] is None
    assert "waiting" not in explaining.explain(supervisor)


def test_the_newest_reason_is_told() -> None:
    supervisor, cluster = supervised()
    tick(supervisor)
    cluster.silent = True
    tick(supervisor)
    assert explaining.status(supervisor.store)["waiting_for"] == "ControlPlaneBlind"
    story = explaining.explain(supervisor)
    assert story["waiting"]["reason"] == "ControlPlaneBlind"


def test_a_run_with_a_living_supervisor_is_not_called_alone() -> None:
    supervisor, _ = supervised()
    tick(supervisor)
    assert "Nobody" not in explaining.status(supervisor.store)["message"]
    assert "Nobody" not in explaining.explain(supervisor)["next"]


def test_ranks_that_wait_beyond_the_limit_end_the_job_and_the_run_lacks_capacity() -> None:
    supervisor, cluster = supervised(Budgets(wait_seconds=30.0))
    tick(supervisor, 3)
    job = supervisor.gatherer.id(1)
    cluster.move(job, JobStatus.PENDING, JobStatus.RUNNING)
    waiting = {"step": 0, "phase": "waiting", "message": "1 of 2 workers are ready"}
    supervisor.store.put(contract.progress(1), json.dumps(waiting).encode())
    tick(supervisor, 29)
    assert cluster.running() == [job]
    shown = explaining.status(supervisor.store)
    assert (shown["state"], shown["waiting_for"]) == ("Waiting", "CapacityMissing")
    tick(supervisor, 10)
    assert cluster.running() == []
    result = json.loads(supervisor.store.get(contract.RESULT) or b"")
    assert (result["state"], result["failure_class"]) == ("Failed", "CapacityMissing")
    assert "1 of 2 workers are ready" in result["message"]
    assert "--wait-limit" in result["hint"]


RENEW = """
import sys, time
from ops.adapters.clock import SystemClock
from ops.adapters.run_store import open_store
from ops.presence import Presence
from ops.record import Recorder
record = Recorder(open_store(sys.argv[1], "x"), SystemClock())
Presence(record).renew(time.monotonic(), time.time())
print("marked", flush=True)
sys.stdin.read()
"""


def test_a_run_whose_supervisor_was_killed_says_that_nobody_looks_after_it_and_what_to_type(
    tmp_path: Path,
) -> None:
    store, clock = open_store(str(tmp_path), "x"), FakeClock()
    spec = RunSpec(name="x", entrypoint=("python", "t.py"), code_hash="0")
    create(store, clock, spec, b"code")
    words = [sys.executable, "-c", RENEW, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "marked\n"
        assert explaining.nobody(store, "x") == ""
        process.kill()
    assert explaining.status(store)["message"].endswith("type: steadyray job run x")
    story = explaining.explain(Supervisor(spec, store, FakeMaker(FakeCluster()), clock))
    assert "Nobody looks after this run now; type: steadyray job run x" in story["next"]


def test_a_process_that_got_the_number_of_a_supervisor_is_not_taken_for_it() -> None:
    supervisor, _ = supervised()
    tick(supervisor)
    mark = json.loads(supervisor.store.get(MARK) or b"")
    assert mark["pid"] == os.getpid()
    supervisor.store.put(MARK, json.dumps({**mark, "time": 1.0}).encode())
    assert not is_looked_after(supervisor.store, time.time())


@pytest.mark.parametrize(("age", "alive"), [(0.0, True), (SILENT_SECONDS + 1, False)])
def test_a_supervisor_on_another_machine_is_known_by_the_age_of_its_mark(age: float, alive: bool) -> None:
    store = MemoryStore()
    store.put(MARK, json.dumps({"host": "elsewhere.invalid", "pid": 1, "time": 1000.0}).encode())
    assert is_looked_after(store, 1000.0 + age) is alive


def test_a_secret_in_the_trainers_hint_reaches_no_record_of_the_supervisor() -> None:
    supervisor, cluster = supervised()
    tick(supervisor)
    job = supervisor.gatherer.id(1)
    cluster.move(job, JobStatus.PENDING, JobStatus.RUNNING)
    hint = {"failure_class": "UserError", "message": f'login failed: "password=\\"{SECRET}\\"" Bearer abc"'}
    supervisor.store.put(contract.failure(1), json.dumps(hint).encode())
    said = f'{{"tokens_per_second": 1, "api_key": "{SECRET}"}} Bearer abc"'
    cluster.move(job, JobStatus.RUNNING, JobStatus.FAILED, message=said, exit_code=1)
    tick(supervisor)
    assert "login failed" in json.loads(supervisor.store.get(contract.RESULT) or b"")["message"]
    for path in supervisor.store.list():
        data = supervisor.store.get(path) or b""
        if path.endswith(".json"):
            assert json.loads(data), path
        assert SECRET.encode() not in data or path == contract.failure(1), path
    view, _ = supervisor.explain()
    assert view.finished is not None
