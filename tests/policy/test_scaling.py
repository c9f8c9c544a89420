"""Why something waits for resources: one row a reason."""

from __future__ import annotations

import pytest

from ops.policy.scaling import Demand, GroupView, explain, scaled

CPU = GroupView("cpu", floor=0, max=2, offers={"CPU": 1, "steadyray_worker": 1000})
GPU = GroupView("gpu", floor=0, max=1, offers={"CPU": 1, "GPU": 4})


@pytest.mark.parametrize(
    ("bundle", "groups", "reason", "message"),
    [
        ({"GPU": 8}, (CPU, GPU), "NoGroupFits", "no group has GPU 8 (at most 4 on one node)"),
        ({"TPU": 1}, (CPU, GPU), "NoGroupFits", "no group has TPU 1 (in no group)"),
        (
            {"GPU": 1, "steadyray_worker": 1},
            (CPU, GPU),
            "NoGroupFits",
            "no group has GPU 1, steadyray_worker 1 together on one node",
        ),
        (
            {"CPU": 1},
            (GroupView("cpu", 0, 2, {"CPU": 1}, starting=1),),
            "NodesStarting",
            "group cpu are starting",
        ),
        ({"GPU": 1}, (CPU, GPU), "NodesComing", "a node of group gpu will be started"),
        (
            {"CPU": 1},
            (GroupView("cpu", 0, 2, {"CPU": 1}, ready=2), GroupView("gpu", 0, 1, {"CPU": 1}, ready=1)),
            "GroupsFull",
            "every group that fits is at its max: cpu (2), gpu (1)",
        ),
        ({"CPU": 1, "GPU": 0}, (CPU,), "NodesComing", "a node of group cpu will be started"),
    ],
)
def test_waiting_is_explained(
    bundle: dict[str, float], groups: tuple[GroupView, ...], reason: str, message: str
) -> None:
    missing = explain(Demand(bundle, 3), groups)
    assert missing.reason == reason
    assert message in missing.message
    assert missing.what.startswith("3 x ")


@pytest.mark.parametrize(
    ("count", "refusal"),
    [(0, None), (2, None), (3, "group cpu may have 2 nodes at most"), (-1, "-1 is no number of nodes")],
)
def test_a_floor_is_refused_above_the_max(count: int, refusal: str | None) -> None:
    assert scaled(CPU, count) == refusal
