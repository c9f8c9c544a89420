"""`steadyray fleet` and the mode of a run, as typed; no cluster is needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ops import cli
from ops.adapters.run_store import open_store, run_names
from ops.cli.fleet import fleet_of
from ops.cli.new_run import Options
from ops.config import observes, runs_root
from ops.policy.model import Mode
from ops.spec import RunSpec

SPEC = RunSpec(schema=1, name="r", entrypoint=("python", "x.py"), code_hash="0", mode=Mode.ACT)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEADYRAY_HOME", str(tmp_path))
    monkeypatch.delenv("STEADYRAY_RUNS", raising=False)
    return tmp_path


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.run(["fleet", *words, "-o", "json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_person_opens_the_breaker_sees_it_and_closes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(capsys, "status")["breaker"] == "closed"
    opened = typed(capsys, "open", "--why", "maintenance")
    assert (opened["breaker"], opened["why"]) == ("open", "maintenance")
    assert opened["close_it"] == "steadyray fleet close --why TEXT"
    assert typed(capsys, "open")["why"] == "maintenance", "the first word stays"
    assert typed(capsys, "close", "--why", "done")["breaker"] == "closed"
    assert typed(capsys, "close")["breaker"] == "closed"


def test_a_secret_in_a_persons_words_is_not_kept(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    typed(capsys, "open", "--why", "API_TOKEN=swordfish-1234")
    assert b"swordfish" not in (home / "runs/_fleet/breaker.json").read_bytes()


def test_acts_of_all_runs_are_counted_and_the_folder_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = fleet_of(runs_root())
    for n in range(21):
        opened = fleet.mark(f"r{n}", {"run": f"r{n}", "action": "Resubmit"})
    assert opened is not None
    told = typed(capsys, "status")
    assert (told["breaker"], told["acts"], told["run"]) == ("open", 21, "r20")
    open_store(runs_root(), "_fleet").put("spec.json", b"{}")
    assert run_names(runs_root()) == []


def test_looking_makes_no_folder_and_marking_does(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(capsys, "status")["breaker"] == "closed"
    assert typed(capsys, "close")["breaker"] == "closed"
    assert not (home / "runs").exists()
    fleet = fleet_of(runs_root())
    assert fleet.mark("r", {}) is None
    shutil.rmtree(home / "runs/_fleet")
    assert fleet.mark("r", {}) is None
    assert fleet.acts().acts == 1


def test_a_storage_that_is_not_there_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["fleet", "open", "--storage", str(home / "typo")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert not (home / "typo").exists()


def test_the_limit_is_that_of_all_supervisors(capsys: pytest.CaptureFixture[str]) -> None:
    told = typed(capsys, "limit", "100", "--minutes", "30")
    assert (told["allowed"], told["window_seconds"]) == (100, 1800.0)
    assert cli.run(["fleet", "limit", "5", "--minutes", "inf"]) == 2


@pytest.mark.parametrize("content", ["{", "{}", '{"time": 1e300, "why": []}', '{"time": "x", "why": "y"}'])
def test_a_damaged_breaker_is_shown_and_closed(
    content: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(capsys, "open")
    (home / "runs/_fleet/breaker.json").write_text(content)
    assert typed(capsys, "status")["breaker"] == "open"
    assert typed(capsys, "close")["breaker"] == "closed"


def test_the_hint_names_a_storage_that_is_not_the_default(home: Path) -> None:
    assert fleet_of("s3://runs/team").close_command == "steadyray fleet close --storage s3://runs/team"


@pytest.mark.parametrize(
    ("said", "told"), [("observe", True), ("act", False), ("", False), ("Observe", True)]
)
def test_a_machine_may_only_observe(monkeypatch: pytest.MonkeyPatch, said: str, told: bool) -> None:
    monkeypatch.setenv("STEADYRAY_MODE", said)
    assert observes() is told


def test_a_mode_that_is_none_is_refused_before_a_run_is_made(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEADYRAY_MODE", "Observe")
    assert cli.run(["job", "run", "--", "python", "x.py"]) == 2
    assert "STEADYRAY_MODE is 'Observe'" in capsys.readouterr().err
    assert run_names(runs_root()) == []


def test_the_mode_is_stored_with_the_run_and_stays_unless_it_is_said_anew() -> None:
    observing = Options(mode=Mode.OBSERVE).applied(SPEC)
    stored = RunSpec.model_validate(json.loads(observing.model_dump_json(by_alias=True)))
    assert stored.mode is Mode.OBSERVE
    assert Options().applied(stored).mode is Mode.OBSERVE
    assert Options(mode=Mode.ACT).applied(stored).mode is Mode.ACT


def test_a_spec_of_before_the_modes_acts() -> None:
    old = json.loads(SPEC.model_dump_json(by_alias=True))
    del old["mode"]
    assert RunSpec.model_validate(old).mode is Mode.ACT
