"""Ranks that are killed, freeze, loop, are slow or asked to leave: the job goes on with no step redone."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from .conftest import StartTraining, Training

pytestmark = pytest.mark.ray

STEPS = 400
UNREADABLE = "/proc/self/mem"
"""Reading it from its start is an input/output error."""


@pytest.fixture(scope="module")
def unhurt_losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The loss curve that every recovered run on two ranks must repeat bit by bit."""
    return {}


def reference(start_training: StartTraining, known: dict[int, float]) -> dict[int, float]:
    if not known:
        training = start_training(name="reference", steps=STEPS, spares=0)
        training.finish()
        known.update(training.losses())
    return known


def assert_whole(training: Training, result: dict[str, object]) -> None:
    assert result["seen"] == STEPS
    assert sorted(training.losses()) == list(range(1, STEPS + 1))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_replaced_by_the_spare_and_the_loss_curve_stays_bit_equal(
    start_training: StartTraining, unhurt_losses: dict[int, float], rank: int
) -> None:
    training = start_training(steps=STEPS)
    training.signal_rank(rank, signal.SIGKILL)
    assert_whole(training, training.finish())
    [recovery] = training.recovered()
    assert recovery["depth"] == "hot"
    assert recovery["steps_redone"] == 0
    assert recovery["lost"] == [rank]
    assert training.losses() == reference(start_training, unhurt_losses)
    assert {e["data"]["failure_class"] for e in training.events("RankLost")} == {"WorkerCrash"}


def test_both_ranks_killed_at_once_go_on_from_the_last_checkpoint(start_training: StartTraining) -> None:
    training = start_training(steps=STEPS)
    pids = training.ready()
    saved = training.wait_for(lambda p: p["checkpoint_step"])["checkpoint_step"]
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert_whole(training, training.finish())
    recovery = training.recovered()[0]
    assert recovery["depth"] == "reload"
    [loaded] = training.events("CheckpointLoaded")
    assert loaded["data"]["step"] >= saved
    [last, *_] = [e["data"]["last_step"] for e in training.events("RankLost")]
    assert last - loaded["data"]["step"] <= recovery["steps_redone"] < 60
    assert training.progress()["world_size"] == 2


def stopped_after_two_checkpoints(
    start_training: StartTraining,
) -> tuple[Training, dict[int, int], Path, Path]:
    """A training whose ranks are frozen, so that nothing is saved any more: its pids, and the newest two."""
    training = start_training(steps=STEPS, checkpoint_steps=40)
    pids = training.ready()
    training.wait_for(lambda p: (p["checkpoint_step"] or 0) >= 80)
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    parent, newest = sorted(p.parent for p in (training.root / "checkpoints").glob("*/MANIFEST.json"))[-2:]
    return training, pids, parent, newest


@pytest.mark.parametrize("damage", ["truncated", "bit flipped"])
def test_a_damaged_checkpoint_is_set_aside_and_its_parent_taken(
    start_training: StartTraining, damage: str
) -> None:
    training, pids, parent, newest = stopped_after_two_checkpoints(start_training)
    hurt(newest / "state.pt", damage)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert_whole(training, training.finish())
    [set_aside] = training.events("CheckpointSetAside")
    assert set_aside["data"]["id"] == newest.name
    [loaded] = training.events("CheckpointLoaded")
    assert loaded["data"]["id"] == parent.name
    assert (training.root / "checkpoints/set-aside" / newest.name / "state.pt").exists()


def test_a_checkpoint_that_the_storage_does_not_hand_out_is_passed_over_and_stays(
    start_training: StartTraining,
) -> None:
    training, pids, parent, newest = stopped_after_two_checkpoints(start_training)
    (newest / "MANIFEST.json").unlink()
    (newest / "MANIFEST.json").symlink_to(UNREADABLE)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert_whole(training, training.finish())
    assert training.events("CheckpointSetAside") == []
    [loaded] = training.events("CheckpointLoaded")
    assert loaded["data"]["id"] == parent.name
    assert training.recovered()[0]["depth"] == "reload"


def test_a_rank_whose_loader_lost_a_worker_is_replaced_like_a_killed_one(
    start_training: StartTraining, tmp_path: Path
) -> None:
    training = start_training(steps=STEPS, fault="loader", at=60, once=str(tmp_path / "once"))
    training.ready()
    assert_whole(training, training.finish())
    [recovery] = training.recovered()
    assert (recovery["depth"], recovery["steps_redone"], recovery["lost"]) == ("hot", 0, [1])
    [lost] = training.events("RankLost")
    assert lost["data"]["failure_class"] == "WorkerCrash"
    assert "DataLoader worker" in lost["data"]["reason"]


def hurt(path: Path, damage: str) -> None:
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_frozen_rank_is_named_its_stacks_are_saved_and_it_is_replaced(
    start_training: StartTraining, unhurt_losses: dict[int, float], rank: int
) -> None:
    training = start_training(steps=STEPS)
    training.signal_rank(rank, signal.SIGSTOP)
    assert_whole(training, training.finish())
    [recovery] = training.recovered()
    assert (recovery["depth"], recovery["steps_redone"], recovery["lost"]) == ("hot", 0, [rank])
    assert recovery["seconds_total"] - recovery["seconds_detection"] < 2.0
    [suspicion] = training.events("HangSuspected")
    stacks = (training.root / suspicion["data"]["stacks"]).read_text()
    assert "train" in stacks
    assert training.losses() == reference(start_training, unhurt_losses)


@pytest.mark.parametrize("loop", ["without_buffers", "own_backward"])
def test_a_frozen_rank_is_named_in_time_whatever_the_loop_looks_like(
    start_training: StartTraining, loop: str
) -> None:
    """Without buffers the peers wait in no forward pass; with an own `backward` nobody tells where it is."""
    training = start_training(steps=STEPS, **{loop: True})
    training.signal_rank(0, signal.SIGSTOP)
    assert_whole(training, training.finish())
    [suspicion] = training.events("HangSuspected")
    assert suspicion["data"]["rank"] == 0
    assert suspicion["data"]["waited_seconds"] < 30.0, "it did not take the minute of an unnamed hang"


def test_a_copy_for_a_checkpoint_that_takes_longer_than_a_hang_is_none(start_training: StartTraining) -> None:
    training = start_training(steps=60, spares=0, checkpoint_steps=20, copy_seconds=8.0)
    training.finish()
    assert training.events("HangSuspected") == []
    assert training.events("RankLost") == []


def test_a_driver_that_stands_still_in_a_recovery_loses_nobody_who_lives(
    start_training: StartTraining,
) -> None:
    """A paused machine, swap, a throttled container: its silence is not that of its ranks."""
    training = start_training(steps=STEPS)
    pids = training.ready()
    os.kill(pids[1], signal.SIGKILL)
    os.kill(training.process.pid, signal.SIGSTOP)
    time.sleep(3.0)  # the fault itself: for so long the driver does not look
    os.kill(training.process.pid, signal.SIGCONT)
    assert_whole(training, training.finish())
    assert [e["data"]["rank"] for e in training.events("RankLost")] == [1]
    assert [r["steps_redone"] for r in training.recovered()] == [0]


def test_a_spare_that_is_to_go_is_ended_and_replaced(start_training: StartTraining) -> None:
    """It would keep its drained node from going."""
    training = start_training(steps=STEPS)
    ranks = training.ready().values()
    [spare] = [p for p in members(training) if p.pid not in ranks]
    spare.terminate()
    psutil.wait_procs([spare], timeout=60)
    assert not spare.is_running() or spare.status() == psutil.STATUS_ZOMBIE
    assert_whole(training, training.finish())
    assert training.events("RankLost") == []


def members(training: Training) -> list[psutil.Process]:
    return [
        p
        for p in psutil.Process(training.process.pid).children(recursive=True)
        if " ".join(p.cmdline()).startswith("ray::Member")
    ]


def test_a_rank_in_an_endless_loop_is_found_although_its_process_answers(
    start_training: StartTraining, tmp_path: Path
) -> None:
    training = start_training(steps=STEPS, fault="loop", at=150, once=str(tmp_path / "once"))
    assert_whole(training, training.finish())
    [recovery] = training.recovered()
    assert (recovery["depth"], recovery["steps_redone"], recovery["lost"]) == ("hot", 0, [1])
    [suspicion] = training.events("HangSuspected")
    assert "go_wrong" in (training.root / suspicion["data"]["stacks"]).read_text()


def test_a_rank_killed_in_the_middle_of_a_recovery_is_recovered_from_too(
    start_training: StartTraining,
) -> None:
    training = start_training(steps=STEPS, spares=2)
    pids = training.ready(spares=2)
    os.kill(pids[1], signal.SIGKILL)
    # The next moment may lie before, in or after the new rendezvous; all of them must be survived.
    training.wait_for(lambda p: bool(p["message"]) or p["generation"] == 2)
    os.kill(pids[0], signal.SIGKILL)
    assert_whole(training, training.finish())
    assert {0, 1} <= {rank for r in training.recovered() for rank in r["lost"]}


def test_without_a_spare_fewer_ranks_go_on_at_once_and_the_group_grows_back(
    start_training: StartTraining,
) -> None:
    training = start_training(steps=STEPS, spares=0)
    training.signal_rank(1, signal.SIGKILL, spares=0)
    training.wait_for(lambda p: p["world_size"] == 1)
    training.wait_for(lambda p: p["world_size"] == 2 and p["generation"] >= 3)
    assert_whole(training, training.finish())
    assert [r["steps_redone"] for r in training.recovered()] == [0, 0]
    sizes = [e["data"]["world_size"] for e in training.events("GenerationStarted")]
    assert sizes == [2, 1, 2]


def test_a_rank_that_gets_sigterm_hands_over_without_being_charged(
    start_training: StartTraining, unhurt_losses: dict[int, float]
) -> None:
    training = start_training(steps=STEPS)
    training.signal_rank(1, signal.SIGTERM)
    assert_whole(training, training.finish())
    assert [e["data"]["failure_class"] for e in training.events("RankLost")] == ["Preempted"]
    assert all(r["steps_redone"] == 0 for r in training.recovered())
    assert training.losses() == reference(start_training, unhurt_losses)


def test_the_only_rank_saves_before_it_hands_over(start_training: StartTraining) -> None:
    """With one rank no peer stays to hand the state on; the checkpoint that it leaves has every step."""
    training = start_training(steps=STEPS, workers=[1, 1], checkpoint_steps=1000)
    training.signal_rank(0, signal.SIGTERM)
    assert_whole(training, training.finish())
    [recovery] = training.recovered()
    assert (recovery["depth"], recovery["steps_redone"]) == ("reload", 0)


def test_a_rank_that_is_to_go_and_has_no_successor_leaves_fresh_checkpoints(
    start_training: StartTraining,
) -> None:
    training = start_training(steps=STEPS, workers=[2, 2], spares=0, cpus=2, checkpoint_steps=10_000)
    pids = training.ready(spares=0)
    os.kill(pids[1], signal.SIGTERM)
    first = training.wait_for(lambda p: p["checkpoint_step"])["checkpoint_step"]
    last = training.wait_for(lambda p: (p["checkpoint_step"] or 0) > first)["checkpoint_step"]
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    assert_whole(training, training.finish())
    [loaded] = training.events("CheckpointLoaded")
    assert loaded["data"]["step"] >= last


def test_a_rank_that_was_only_slow_is_kept_as_a_spare_and_counted(
    start_training: StartTraining, tmp_path: Path
) -> None:
    training = start_training(steps=STEPS, fault="slow", seconds=6.5, at=150, once=str(tmp_path / "once"))
    assert_whole(training, training.finish())
    assert [e["data"]["lost"] for e in training.events("Recovered") if e["data"]["false_alarm"]] == [[1]]
    assert json.dumps(training.events("HangSuspected"))


def test_a_slow_phase_is_not_taken_for_a_hang(start_training: StartTraining) -> None:
    training = start_training(steps=60, phase_seconds=8.0)
    training.finish()
    assert training.events("HangSuspected") == []
