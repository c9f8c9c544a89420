"""What holds for whatever folder is tested.

In CI a skipped test is a failed one: a suite that skips what the machine lacks would pass on nothing.
And Ctrl-C and a hang-up work: a shell starts its background jobs with SIGINT ignored, and nohup its command
with SIGHUP ignored, which every process they start inherits, so that the tests that send one would wait for
nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import TypeVar

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

IN_CI = os.environ.get("CI") == "true"
R = TypeVar("R", pytest.TestReport, pytest.CollectReport)


def _fail_if_skipped(report: R) -> R:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not accept: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _fail_if_skipped((yield))
