"""What the driver writes of a recovery, with steps whose times come from the clocks of other hosts."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from steadyray.chronicle import Chronicle
from steadyray.contract import Depth, EventKind, FailureClass
from steadyray.members import Handle
from steadyray.messages import MemberState, Report
from steadyray.recovery import Break, Loss, Regroup
from steadyray.rundir import RunWriter

SKEWS = st.floats(-60, 60)
RANKS = ("a", "b")


class Written(RunWriter):
    """Keeps the events instead of writing them."""

    def __init__(self) -> None:
        super().__init__(None, 1)
        self.events: dict[EventKind, dict[str, Any]] = {}

    def event(self, kind: EventKind, *, generation: int = 0, incident: str = "", **data: Any) -> None:
        self.events[kind] = data


def finished(step: int, at: float) -> Handle:
    """A rank that has just told of a step."""
    return Handle("a", report=Report(MemberState.TRAINING, 1, 0, step, losses=((step, 0.5, at),)))


@given(before=SKEWS, late=SKEWS, after=SKEWS)
@example(before=-1.0, late=0.04, after=0.1)
@settings(deadline=None)
def test_no_recovery_is_detected_or_over_before_it_happened_whatever_the_clocks_of_the_ranks_say(
    before: float, late: float, after: float
) -> None:
    """As in a run of ours: the last report before the fault came in once the fault was seen (-0.04 s)."""
    writer = Written()
    chronicle = Chronicle(writer)
    handles = {id: Handle(id) for id in RANKS}
    loss = Loss("b", FailureClass.HANG, "gone")
    chronicle.take(finished(9, time.time() + before), RANKS, 1)
    chronicle.breaks(Break((loss,), "rank 1 is lost"), handles, RANKS, 9)
    chronicle.take(finished(10, time.time() + late), RANKS, 1)
    chronicle.regroups(Regroup(("a",), 0, (), Depth.HOT, 10), [handles["a"]], 2, 10, 0)
    chronicle.take(finished(11, time.time() + after), ("a",), 2)
    chronicle.first_new_step(11)
    writer.close()
    assert writer.events[EventKind.RECOVERED]["seconds_detection"] >= 0
    assert writer.events[EventKind.RECOVERED]["seconds_total"] >= 0
    assert writer.events[EventKind.HANG_SUSPECTED]["waited_seconds"] >= 0


def test_a_group_that_grows_back_before_its_first_new_step_was_reloaded_all_the_same() -> None:
    """As on a slow machine: the checkpoint of step 4 is loaded, and a rank comes back at step 6 of 9."""
    writer = Written()
    chronicle = Chronicle(writer)
    handles = {id: Handle(id) for id in RANKS}
    losses = tuple(Loss(id, FailureClass.WORKER_CRASH, "gone") for id in RANKS)
    chronicle.take(finished(9, time.time()), RANKS, 1)
    chronicle.breaks(Break(losses, "both are lost"), handles, RANKS, 9)
    chronicle.regroups(Regroup(("a",), None, (), Depth.RELOAD, 4), [handles["a"]], 2, 9, 0)
    chronicle.regroups(Regroup(RANKS, 0, (1,), Depth.HOT, 6), list(handles.values()), 3, 9, 0)
    chronicle.take(finished(10, time.time()), RANKS, 3)
    chronicle.first_new_step(10)
    writer.close()
    told = writer.events[EventKind.RECOVERED]
    assert (told["depth"], told["from_step"], told["steps_redone"]) == (Depth.RELOAD, 4, 5)
