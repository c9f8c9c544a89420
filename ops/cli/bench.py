"""`steadyray bench`: measure this library against its peers. Parses and prints; the work is in ops.bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.bench import plan
from ops.bench.quick import Quick
from ops.bench.results import Results
from ops.errors import UsageError
from ops.output import note

app = typer.Typer(
    no_args_is_help=True, help="Measure recovery, start-up, throughput and memory against peers."
)

ResultsFile = Annotated[
    Path, typer.Option("--results", help="Results so far, one JSON line each; what is missing is added.")
]
Page = Annotated[Path, typer.Option("--page", help="The page that is written from the results.")]
Cut = Annotated[
    float,
    typer.Option("--cut-seconds", min=10, help="Without a new step for so long, a fault counts as over."),
]
RESULTS, PAGE = Path("docs/benchmarks.jsonl"), Path("docs/benchmarks.md")


@app.command()
def quick(
    only: Annotated[
        list[str] | None, typer.Option("--only", help=f"Sections: {', '.join(plan.SECTIONS)}; default: all.")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="How often each thing is measured.")] = 5,
    minutes: Annotated[
        float | None, typer.Option(min=1, help="Stop after so long; the next call goes on.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order in which things are measured.")] = 1,
    cut_seconds: Cut = 120.0,
    results: ResultsFile = RESULTS,
    page: Page = PAGE,
) -> None:
    """Measure what is missing in the results, in mixed order, and write the page. Needs a quiet machine.

    Examples:

        steadyray bench quick --minutes 35

        steadyray bench quick --only recovery --repetitions 7
    """
    sections = only or list(plan.SECTIONS)
    if unknown := [name for name in sections if name not in plan.SECTIONS]:
        raise UsageError(f"there is no section {unknown[0]!r}", hint=f"one of: {', '.join(plan.SECTIONS)}")
    made = Quick(plan.Plan(repetitions, seed), Results(results), page, cut_seconds, minutes, note)
    made.run(sections)
    note(f"written: {page}")


@app.command("page")
def write_page(cut_seconds: Cut = 120.0, results: ResultsFile = RESULTS, page: Page = PAGE) -> None:
    """Write the page from the results again, measuring nothing.

    Examples:

        steadyray bench page

        steadyray bench page --results other.jsonl --page other.md
    """
    Quick(plan.Plan(1), Results(results), page, cut_seconds, None, note).write_page()
    note(f"written: {page}")
