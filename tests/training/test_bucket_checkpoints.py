"""Checkpoints, events and hints in a bucket: as whole as in a folder, whatever the bucket does meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from s3_server import Bucket as Served
from s3_server import served_to
from steadyray import bucket_start, contract, storage
from steadyray.checkpoint import (
    SET_ASIDE,
    STATE_FILE,
    CheckpointCorruptError,
    CheckpointUnreadableError,
    Saver,
    candidates,
    load_newest,
    prune,
    write,
)
from steadyray.contract import EventKind
from steadyray.rundir import RunWriter, own_attempt
from steadyray.storage import inside, open_storage

URL = "s3://runs/team/run"
KEY = "team/run"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(storage, "SMALL_SECONDS", 1.0)
    monkeypatch.setattr(storage, "RETRY_SECONDS", 4.0)
    yield from served_to(monkeypatch)


def state(step: int) -> dict[str, Any]:
    return {"step": step, "parts": {"model": {"weight": torch.full((16,), float(step))}}}


def save(step: int, attempt: int = 1) -> str:
    relative = contract.checkpoint(step, attempt, 1)
    write(inside(URL, relative), state(step), contract.Manifest(step, attempt, 1, files={}))
    return relative.rpartition("/")[2]


def loaded_step() -> int:
    loaded = load_newest(URL)
    assert loaded is not None
    assert float(loaded.state["parts"]["model"]["weight"][0]) == loaded.manifest.step
    return int(loaded.state["step"])


def damage(served: Served, id: str) -> None:
    key = f"{KEY}/checkpoints/{id}/{STATE_FILE}"
    data, meta, since = served.objects[key]
    served.objects[key] = (data[:-1] + bytes([data[-1] ^ 1]), meta, since)


def test_the_newest_is_loaded_and_the_command_is_told_its_url(served: Served) -> None:
    assert load_newest(URL) is None
    assert bucket_start.newest(URL) == ""
    save(10)
    id = save(20)
    assert loaded_step() == 20
    assert candidates(URL)[0] == id
    assert bucket_start.newest(URL) == f"{URL}/checkpoints/{id}"
    assert own_attempt(URL) == 2


def test_a_bad_one_is_set_aside_for_good_and_the_one_before_it_taken(served: Served) -> None:
    save(10)
    bad = save(20)
    damage(served, bad)
    assert loaded_step() == 10
    assert f"{KEY}/checkpoints/{SET_ASIDE}/{bad}/{contract.MANIFEST}" in served.objects
    save(30)
    prune(URL, 3)
    assert f"{KEY}/checkpoints/{bad}/{STATE_FILE}" in served.objects, "kept for whoever looks into it"
    assert loaded_step() == 30


def test_with_no_good_one_left_the_run_does_not_start_over(served: Served) -> None:
    damage(served, save(10))
    for _ in range(2):
        with pytest.raises(CheckpointCorruptError, match=f"no good checkpoint is left in {URL}"):
            load_newest(URL)


def test_a_bucket_that_is_silent_is_no_bad_checkpoint(served: Served) -> None:
    save(10)
    served.refuse_until = time.monotonic() + 60
    with pytest.raises(CheckpointUnreadableError):
        load_newest(URL)
    served.refuse_until = 0
    assert loaded_step() == 10


def test_pruning_keeps_the_newest_and_deletes_older_left_overs(served: Served) -> None:
    for step in (10, 20, 30, 40):
        save(step)
    open_storage(URL).put(f"checkpoints/{5:010d}-0001-0001/{STATE_FILE}", b"half")
    open_storage(URL).put(f"checkpoints/{50:010d}-0001-0001/{STATE_FILE}", b"in the making")
    prune(URL, 3)
    assert [contract.lineage(id) for id in candidates(URL)] == [(1, 1, step) for step in (40, 30, 20)]
    left = {key.split("/")[3] for key in served.objects}
    assert f"{50:010d}-0001-0001" in left
    assert f"{5:010d}-0001-0001" not in left


def test_what_was_saved_last_is_found_although_the_list_is_late(served: Served) -> None:
    saver = Saver(URL, 1, 1)
    saver.save(state(10), world_size=1, samples=0, sampler={}, wait=True)
    served.listed_after = 3600
    saver.save(state(20), world_size=1, samples=0, sampler={}, wait=True)
    assert not saver.failed
    assert loaded_step() == 20


def test_a_checkpoint_whose_answers_are_lost_is_whole(served: Served) -> None:
    said: list[str] = []
    saver = Saver(URL, 1, 1, on_error=said.append)
    served.cut_puts, served.refuse = 2, 2
    saver.save(state(10), world_size=1, samples=0, sampler={}, wait=True)
    assert (said, loaded_step()) == ([], 10)


def test_one_that_cannot_be_saved_is_told_and_does_not_end_the_training(served: Served) -> None:
    said: list[str] = []
    saver = Saver(URL, 1, 1, on_error=said.append)
    served.refuse_until = time.monotonic() + 60
    saver.save(state(10), world_size=1, samples=0, sampler={}, wait=True)
    assert saver.failed
    assert "cannot save checkpoint 0000000010-0001-0001: StorageError" in said[0]


def test_events_are_neither_lost_nor_doubled(served: Served) -> None:
    writer = RunWriter(URL, 1)
    served.cut_puts, served.refuse = 3, 3
    for step in range(10):
        writer.event(EventKind.STEPS_DONE, to_step=step)
    writer.failure(contract.Failure("UserError", "the cause"))
    writer.failure(contract.Failure("WorkerCrash", "a consequence"))
    writer.close(60)
    assert writer.error == ""
    keys = sorted(key for key in served.objects if "/events/" in key)
    assert [json.loads(served.objects[key][0])["data"]["to_step"] for key in keys] == list(range(10))
    hint = json.loads(served.objects[f"{KEY}/{contract.failure(1)}"][0])
    assert hint["message"] == "the cause"
