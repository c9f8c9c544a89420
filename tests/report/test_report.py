"""Report of a run directory: what is read, the screen, the page; also when half of it is missing."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console
from steadyray import contract
from steadyray.contract import FailureClass
from streams import Stream, eventful, write_run
from typer.testing import CliRunner

from ops import report_words as words
from ops.adapters.run_store import open_store
from ops.cli.report import report as report_command
from ops.errors import NotFoundError
from ops.policy.ledger import Category
from ops.report import Report, as_json, read_report
from ops.report_page import render_page
from ops.report_summary import print_summary


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "digits"
    folder.mkdir(parents=True)
    return write_run(eventful().events, folder)


def read(folder: Path) -> Report:
    return read_report(open_store(str(folder.parent), folder.name), folder.name)


class Page(HTMLParser):
    """Collects what matters of a page: tags with their attributes, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._silent = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._silent = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._silent = ""

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


# --- reading -----------------------------------------------------------------------------------------
def test_a_report_holds_result_model_decisions_and_the_end_of_the_evidence(run_dir: Path) -> None:
    found = read(run_dir)
    assert (found.state, found.model, found.quality) == (
        "Succeeded",
        "final/model.pt",
        ("test_accuracy", 0.975),
    )
    assert [d.action for d in found.decisions] == ["Resubmit"]
    (log,) = found.evidence
    assert log.tail.startswith("step 60 ")
    assert log.tail.count("\n") == 39
    assert len(found.losses) == 300
    assert found.problems == ()


def test_a_damaged_and_a_missing_file_are_named_and_the_rest_is_shown(run_dir: Path) -> None:
    victim = sorted((run_dir / "events").rglob("*.json"))[0]
    victim.write_text('{"time": 1000')
    (run_dir / contract.SPEC).unlink()
    found = read(run_dir)
    assert found.problems == (
        f"{victim.relative_to(run_dir).as_posix()} could not be read and is left out: "
        "times near it are less exact.",
        "spec.json is missing.",
    )
    assert found.ledger.steps > 0
    assert all(problem in Page(render_page(found)).text for problem in found.problems)


@pytest.mark.parametrize("kept", range(1, len(eventful().events)))
def test_a_run_that_still_goes_on_can_be_reported_after_every_event(tmp_path: Path, kept: int) -> None:
    events = eventful().events[:kept]
    found = read(write_run(events, tmp_path))
    assert found.state == "Running"
    assert sum(found.ledger.seconds.values()) == pytest.approx(found.ledger.total_seconds)
    assert "still going" in words.headline(found)
    json.dumps(as_json(found), allow_nan=False)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run"):
        read(tmp_path)


def test_partial_files_of_a_writer_are_not_read(run_dir: Path) -> None:
    event = next((run_dir / "events").rglob("*.json"))
    event.with_name(f".{event.name}.0a1b2c3d").write_text("{")
    assert read(run_dir).problems == ()


def test_credentials_in_what_a_driver_wrote_are_hidden_on_screen_page_and_json(run_dir: Path) -> None:
    url = "https://me:hunter22@example.com/data?token=s3cr3tvalue"
    hint = contract.Failure("UserError", f"cannot read {url}", traceback=f'open("{url}")')
    (run_dir / contract.failure(1)).write_text(json.dumps(hint.to_json()))
    (run_dir / contract.evidence(1, "stack.txt")).write_text(f'fetch("{url}")')
    victim = next(p for p in (run_dir / "events").rglob("*.json") if "RankLost" in p.read_text())
    victim.write_text(victim.read_text().replace("killed by signal 9", f'read \\"{url}\\"'))
    found = read(run_dir)
    shown = [render_page(found), json.dumps(as_json(found))]
    assert all("[redacted]" in text for text in shown)
    assert not any(secret in text for text in shown for secret in ("hunter22", "s3cr3tvalue"))


@pytest.mark.parametrize(
    ("metrics", "quality"),
    [
        ({"loss": 0.1, "val_accuracy": 0.9, "test_accuracy": 0.8}, ("test_accuracy", 0.8)),
        ({"test_loss": 0.2, "accuracy": 0.7}, ("accuracy", 0.7)),
        ({"val_loss": 0.3, "test_loss": 0.2}, ("test_loss", 0.2)),
        ({"loss": 0.1}, None),
        ({}, None),
    ],
)
def test_quality_is_accuracy_before_loss_and_held_out_data_first(
    run_dir: Path, metrics: dict[str, float], quality: tuple[str, float] | None
) -> None:
    assert replace(read(run_dir), metrics=metrics).quality == quality


# --- page --------------------------------------------------------------------------------------------
def test_the_page_loads_nothing_and_forbids_loading(run_dir: Path) -> None:
    page = Page(render_page(read(run_dir)))
    assert [(t, a) for t, a in page.tags if {"src", "href", "srcset", "data", "action"} & a.keys()] == []
    assert {t for t, _ in page.tags} & {"link", "iframe", "img", "object", "embed", "base", "form"} == set()
    (policy,) = [a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_evidence_is_shown_and_never_run(run_dir: Path) -> None:
    page = Page(render_page(read(run_dir)))
    assert "node of the driver <script>alert(1)</script> is gone" in page.text
    assert "<b>Job failed</b> & gone" in page.text
    assert "<img src=http://example.com/x.png>" in page.text
    assert "<i>digits</i>.yaml" in page.text
    assert {"b", "i", "img"} & {tag for tag, _ in page.tags if tag != "b"} == set()


def test_hover_texts_of_charts_hold_no_markup_of_the_evidence(tmp_path: Path) -> None:
    s = eventful()
    s.driver(46, "RankLost", incident="x", rank=1, host="</script><img src=x>", failure_class="<u>Odd</u>")
    page = render_page(read(write_run(s.events, tmp_path)))
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    (loss,) = [text for text in scripts if '"done again"' in text]
    assert "\\u003cimg" not in loss
    assert "&lt;" in loss or "\\u0026lt;" in loss


def test_the_page_tells_the_story_in_words(run_dir: Path) -> None:
    text = Page(render_page(read(run_dir))).text
    for sentence in (
        "The run finished. It took 48 s for 250 steps. Something went wrong twice",
        "50.0% of the time went into new training steps.",
        "Rank 1 on host-1: a worker process died (0:17 into the run).",
        "From the last good step to the next new one it took 0.80 s; no steps had to be done again.",
        "The process that leads the training was lost (0:28 into the run, after step 200).",
        "Submit attempt 2.",
    ):
        assert sentence in text


def test_a_plain_script_gets_a_page_that_says_what_is_not_known(tmp_path: Path) -> None:
    s = Stream().supervisor(0, "RunCreated").submitted(1, 2)
    s.supervisor(10, "AttemptEnded", status="SUCCEEDED").finished(10)
    found = read(write_run(s.events, tmp_path))
    text = Page(render_page(found)).text
    assert "This script reports no losses" in text
    assert "goodput unknown" in text
    assert words.LABELS[Category.UNMEASURED] in text


def test_a_long_curve_keeps_its_extremes_and_stays_light(tmp_path: Path) -> None:
    s = Stream().supervisor(0, "RunCreated").submitted(1, 2).formed(3, 1)
    s.steps(4, 104, 0, 50_000)
    s.events[-1].data["losses"][25_000][1] = 777.25
    found = read(write_run(s.finished(105).events, tmp_path))
    page = render_page(found)
    assert "777.25" in page
    assert len(page) < 5_500_000


# --- words and screen --------------------------------------------------------------------------------
def test_every_category_and_every_class_has_words() -> None:
    assert set(words.LABELS) == set(words.MEANINGS) == set(words.COLOURS) == set(Category)
    assert set(words.CLASSES) == set(FailureClass)
    assert set(words.DEPTHS) == set(contract.Depth)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.623, "0.62 s"),
        (8.26, "8.3 s"),
        (59.7, "1 min 0 s"),
        (125, "2 min 5 s"),
        (11520, "3 h 12 min"),
    ],
)
def test_durations_read_as_people_say_them(seconds: float | None, text: str) -> None:
    assert words.seconds_text(seconds) == text


def test_one_screen_shows_ledger_incidents_accuracy_model_and_page(run_dir: Path) -> None:
    console = Console(file=io.StringIO(), width=100, no_color=True)
    print_summary(read(run_dir), console, Path("report.html"))
    screen = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("Succeeded", "productive", "50.0%", "97.5%", "final/model.pt", "report.html", "13 s", "▲"):
        assert part in screen
    assert len(screen.splitlines()) <= 40
    assert max(map(len, screen.splitlines())) <= 100


# --- command -----------------------------------------------------------------------------------------
@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> SimpleNamespace:
    monkeypatch.setenv("STEADYRAY_RUNS", str(run_dir.parent))
    app = typer.Typer()
    app.command()(report_command)
    return SimpleNamespace(run=lambda *args: CliRunner().invoke(app, list(args)))


def test_the_command_writes_the_page_beside_the_run_and_json_to_stdout(
    command: SimpleNamespace, run_dir: Path
) -> None:
    done = command.run("digits", "-o", "json")
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert data["goodput"] == pytest.approx(0.5)
    assert [i["steps_lost"] for i in data["incidents"]] == [0, 50]
    assert Path(data["page"]) == run_dir / "report.html"
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")


def test_the_page_can_go_elsewhere_and_the_run_is_left_as_it_was(
    command: SimpleNamespace, run_dir: Path, tmp_path: Path
) -> None:
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    done = command.run("digits", "--html", str(tmp_path / "new" / "page.html"))
    assert done.exit_code == 0
    assert (tmp_path / "new" / "page.html").exists()
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == before


def test_an_unknown_run_is_named_with_the_runs_that_there_are(
    command: SimpleNamespace, run_dir: Path
) -> None:
    error = command.run("digit").exception
    assert isinstance(error, NotFoundError)
    assert "digits" in error.hint
    assert not (run_dir.parent / "digit").exists()
