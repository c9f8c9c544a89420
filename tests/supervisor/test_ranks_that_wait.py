"""Ranks that nobody can place: the run waits with the reason, and its own limit ends it."""

from __future__ import annotations

import pytest

from conftest import Desk, wait_for

TOO_MANY = """\
import steadyray


def train(config):
    for generation in steadyray.generations(steadyray.State()):
        pass


steadyray.run(train, workers=9)
"""


@pytest.mark.ray
def test_a_run_whose_ranks_find_no_place_waits_with_the_reason_until_its_limit(desk: Desk) -> None:
    script = desk.script("train.py", TOO_MANY)
    watching = desk.start(*desk.job("crowd", "--wait-limit", "15"), script)
    wait_for(lambda: desk.read("crowd", "attempts/0001/progress.json").get("phase") == "waiting", "the wait")
    status = desk.run("job", "status", "crowd", "-o", "json")
    assert '"Waiting"' in status.stdout
    assert "of at least 9 workers are ready" in status.stdout
    _, err = watching.communicate(timeout=180)
    assert watching.returncode == 4, err
    result = desk.read("crowd", "result.json")
    assert (result["state"], result["failure_class"]) == ("Failed", "CapacityMissing")
    assert desk.attempts("crowd") == 1
