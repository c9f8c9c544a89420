"""What a benchmark measures next, how it judges a trace, what its page says. No process is started."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from ops.adapters.local_cluster import ClusterConnection
from ops.bench import plan
from ops.bench.desk import Training
from ops.bench.page import render_page, spread, whole
from ops.bench.quick import SHARES, section_deadline
from ops.bench.results import BROKEN, MEASURED, NEVER, OVER, RECOVERED, Results, Row
from ops.bench.trace import parse, recovery, standstill


def measured_in_order(made: plan.Plan, section: str) -> list[tuple[str, str]]:
    """All that a plan wants of a section, one row for each case in the order of the units."""
    rows: list[Row] = []
    while unit := made.next(section, rows):
        rows += [Row(section, unit.system, case, RECOVERED) for case in unit.cases]
    return [(row.system, row.case) for row in rows]


@pytest.mark.parametrize("section", plan.SECTIONS)
def test_every_case_of_a_section_is_measured_as_often_as_wanted(section: str) -> None:
    made = plan.Plan(repetitions=5)
    counts = Counter(measured_in_order(made, section))
    assert counts == {pair: made.wanted(*pair) for pair in plan.CASES[section]}


@pytest.mark.parametrize("section", plan.SECTIONS)
def test_any_prefix_of_the_order_is_balanced(section: str) -> None:
    made = plan.Plan(repetitions=5)
    order = measured_in_order(made, section)
    for end in range(len(order)):
        counts = Counter(order[:end])
        open_ones = [counts[pair] for pair in plan.CASES[section] if counts[pair] < made.wanted(*pair)]
        assert max(counts.values(), default=0) - min(open_ones) <= 1


def test_the_rounds_differ_in_their_order_and_the_same_seed_repeats_it() -> None:
    order = measured_in_order(plan.Plan(5, seed=1), plan.RECOVERY)
    assert order == measured_in_order(plan.Plan(5, seed=1), plan.RECOVERY)
    assert order != measured_in_order(plan.Plan(5, seed=2), plan.RECOVERY)
    systems = [[system for system, _ in order[start : start + 25]] for start in (0, 25)]
    assert systems[0] != systems[1]


def test_what_ends_a_peers_job_comes_last_in_its_training() -> None:
    made = plan.Plan(repetitions=1)
    rows: list[Row] = []
    while unit := made.next(plan.RECOVERY, rows):
        assert unit.cases[-2:] == (plan.HUNG, plan.DRIVER)
        rows += [Row(plan.RECOVERY, unit.system, case, RECOVERED) for case in unit.cases]


def test_a_training_that_ended_early_leaves_its_other_faults_for_the_next_one() -> None:
    made = plan.Plan(repetitions=1)
    first = made.next(plan.RECOVERY, [])
    assert first is not None
    then = made.next(plan.RECOVERY, [Row(plan.RECOVERY, first.system, first.cases[0], NEVER)])
    assert then is not None
    assert then.cases == first.cases[1:]


# Steps 1 to 4 before the fault at 10.0; 4 is the step in flight.
BEFORE = [(9.80, 1), (9.90, 2), (9.95, 3), (10.03, 4)]


@pytest.mark.parametrize(
    ("after", "seconds", "redone"),
    [
        ([(10.6, 5), (10.65, 6)], 0.6, 0),
        ([(18.0, 3), (18.1, 4), (18.2, 5)], 8.2, 2),
        ([(30.0, 1), (30.1, 2), (30.2, 3), (30.3, 4), (31.0, 5)], 21.0, 4),
    ],
)
def test_a_recovery_lasts_until_a_step_that_was_never_done_before(
    after: list[tuple[float, int]], seconds: float, redone: int
) -> None:
    found = recovery(BEFORE + after, 10.0)
    assert found is not None
    assert (found.seconds, found.steps_redone) == (pytest.approx(seconds), redone)


def test_steps_of_ranks_that_outlive_their_driver_are_no_recovery() -> None:
    orphans = [(10.2, 101), (10.4, 102)]
    assert recovery(BEFORE + orphans, 10.0, restarted=15.0) is None
    found = recovery([*BEFORE, *orphans, (16.0, 101), (16.1, 102), (16.2, 103)], 10.0, restarted=15.0)
    assert found is not None
    assert (round(found.seconds, 1), found.steps_redone) == (6.2, 2)


@pytest.mark.parametrize("after", [[], [(18.0, 3), (18.1, 4)]])
def test_steps_that_are_done_again_are_no_recovery(after: list[tuple[float, int]]) -> None:
    assert recovery(BEFORE + after, 10.0) is None


def test_the_standstill_is_the_longest_pause_between_new_steps() -> None:
    marks = [*BEFORE, (13.0, 5), (13.1, 6), (13.2, 6), (13.3, 7)]
    found = standstill(marks, 10.0, until=14.0)
    assert (found.seconds, found.steps_redone) == (pytest.approx(2.97), 1)


def test_a_training_that_stopped_has_stood_still_to_the_end() -> None:
    assert standstill(BEFORE, 10.0, until=30.0).seconds == pytest.approx(19.97)


def test_a_line_that_is_still_being_written_is_not_read() -> None:
    assert parse("1.5 1\n2.5 2\n3.") == [(1.5, 1), (2.5, 2)]


def test_results_go_on_where_an_earlier_run_ended(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    row = Row(plan.START, plan.OURS, "to first step", MEASURED, {"seconds": 9.5}, 1.0)
    Results(path).add_machine({"cores": 2})
    Results(path).add(row)
    Results(path).add_machine({"cores": 2})
    assert Results(path).rows() == [row]
    assert Results(path).machine() == {"cores": 2}
    assert len(path.read_text().splitlines()) == 2


def test_time_is_divided_by_what_is_still_to_come() -> None:
    assert section_deadline(None, 0.0, plan.SECTIONS) == float("inf")
    total = sum(SHARES.values())
    assert section_deadline(total, 0.0, plan.SECTIONS) == pytest.approx(SHARES[plan.START])
    assert section_deadline(100.0, 40.0, [plan.RECOVERY]) == 100.0


def kill(system: str, *seconds: float, outcome: str = RECOVERED, redone: int = 0) -> list[Row]:
    return [
        Row(
            plan.RECOVERY,
            system,
            plan.KILLED,
            outcome,
            {"seconds": s, "steps_redone": redone} if outcome == RECOVERED else {},
        )
        for s in seconds
    ]


def line(page: str, start: str) -> str:
    return next(text for text in page.splitlines() if text.startswith(f"| {start} "))


def page(rows: list[Row]) -> str:
    return render_page(rows, {"cores": 2}, 120.0)


def test_a_spread_is_the_median_with_smallest_largest_and_count() -> None:
    assert spread([3.0, 1.0, 2.0], whole) == "2 (1 to 3, n=3)"
    assert spread([], whole) == "not measured"


def test_the_page_compares_with_the_best_peer() -> None:
    rows = kill(plan.OURS, 0.5, 0.6, 0.7) + kill(plan.DEFAULT, 10.0) + kill(plan.TORCHFT, 6.0)
    assert line(page(rows), "worker killed: part of the best peer").endswith("| at most 0.2 | 0.10 | met |")
    slow = kill(plan.OURS, 3.0) + kill(plan.TORCHFT, 6.0)
    assert line(page(slow), "worker killed: part of the best peer").endswith("| 0.50 | **missed** |")


def test_a_step_redone_misses_the_target() -> None:
    rows = kill(plan.OURS, 0.5) + kill(plan.OURS, 0.5, redone=2)
    assert line(page(rows), "steps redone, largest of all").endswith("| 0 | 2.00 | **missed** |")


def test_what_did_not_recover_is_said_and_never_wins() -> None:
    rows = kill(plan.OURS, 0.5) + kill(plan.DEFAULT, 0, 0, outcome=NEVER) + kill(plan.TUNED, 0, outcome=OVER)
    shown = line(page(rows), plan.KILLED)
    assert "never (n=2)" in shown
    assert "over (n=1)" in shown
    assert "| no peer recovered | met |" in line(page(rows), "worker killed: part of the best peer")
    nobody = kill(plan.OURS, 0, outcome=OVER) + kill(plan.DEFAULT, 0, outcome=NEVER)
    assert "| **missed** |" in line(page(nobody), "worker killed: part of the best peer")


def test_broken_measurements_are_counted_and_enter_no_number() -> None:
    rows = [*kill(plan.OURS, 0.5), Row(plan.RECOVERY, plan.OURS, plan.KILLED, BROKEN)]
    assert "n=1" in line(page(rows), plan.KILLED)
    assert "could not be made (see the notes in docs/benchmarks.jsonl): 1." in page(rows)


def test_ratios_are_judged_by_their_direction() -> None:
    def speed(system: str, value: float) -> Row:
        return Row(plan.THROUGHPUT, system, "steps a second", MEASURED, {"steps_per_second": value})

    good = page([speed(plan.OURS, 98.0), speed(plan.TORCHRUN, 100.0)])
    bad = page([speed(plan.OURS, 90.0), speed(plan.TORCHRUN, 100.0)])
    assert line(good, "medians, against torchrun").endswith("| at least 0.95 | 0.98 | met |")
    assert line(bad, "medians, against torchrun").endswith("| 0.90 | **missed** |")


def test_a_page_without_results_says_so() -> None:
    assert "not measured" in page([])


def test_progress_is_the_newest_attempts_and_a_folder_that_goes_meanwhile_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are pruned while the benchmark looks for the file beside them."""
    for name in ("attempts/0001", "attempts/0002", "attempts/0002/evidence", "checkpoints/1"):
        (tmp_path / "runs/r" / name).mkdir(parents=True)
        (tmp_path / "runs/r" / name / "progress.json").write_text(f'{{"step": "{name}"}}')
    scandir = os.scandir

    def prune_first(path: str) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "checkpoints":
            Path(path).rename(tmp_path / "gone")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", prune_first)
    training = Training(tmp_path, cast(ClusterConnection, None), "r")
    assert training.progress() == {"step": "attempts/0002"}
