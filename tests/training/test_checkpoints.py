"""Checkpoints on real files, damaged in the ways that were seen: not loaded, not deleted, not hidden."""

from __future__ import annotations

import json
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steadyray import checkpoint, contract
from steadyray.checkpoint import (
    SET_ASIDE,
    STATE_FILE,
    CheckpointCorruptError,
    CheckpointUnreadableError,
    Saved,
    Saver,
    candidates,
    load_newest,
    prune,
    write,
)
from steadyray.state import StateDict
from steadyray.storage import Root, StorageError


def state(step: int) -> dict[str, Any]:
    return {"step": step, "parts": {"model": {"weight": torch.full((16,), float(step))}}}


def save(root: Path, step: int, attempt: int = 1, generation: int = 1) -> Path:
    folder = root / contract.checkpoint(step, attempt, generation)
    write(folder, state(step), contract.Manifest(step, attempt, generation, files={}))
    return folder


def loaded_step(root: Path) -> int:
    loaded = load_newest(root)
    assert loaded is not None
    assert float(loaded.state["parts"]["model"]["weight"][0]) == loaded.manifest.step
    return int(loaded.state["step"])


def flip(path: Path, position: float = 0.5) -> None:
    """Invert one bit, which no size shows."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * position)] ^= 1
    path.write_bytes(content)


def truncate(folder: Path) -> None:
    content = (folder / STATE_FILE).read_bytes()
    (folder / STATE_FILE).write_bytes(content[: len(content) // 2])


def empty_manifest(folder: Path) -> None:
    (folder / contract.MANIFEST).write_text("")


def manifest_without_files(folder: Path) -> None:
    (folder / contract.MANIFEST).write_text('{"step": 20, "attempt": 1, "generation": 1, "files": []}')


def manifest_of_another_step(folder: Path) -> None:
    content = json.loads((folder / contract.MANIFEST).read_text())
    (folder / contract.MANIFEST).write_text(json.dumps({**content, "step": 999}))


DAMAGES = {
    "truncated": (truncate, f"{STATE_FILE} has .* bytes, not"),
    "flipped bit": (lambda folder: flip(folder / STATE_FILE), f"{STATE_FILE} has another SHA-256"),
    "flipped bit in the header": (lambda folder: flip(folder / STATE_FILE, 0.0), "another SHA-256"),
    "state gone": (lambda folder: (folder / STATE_FILE).unlink(), f"{STATE_FILE} is missing"),
    "empty manifest": (empty_manifest, "MANIFEST.json cannot be read"),
    "manifest without files": (manifest_without_files, "MANIFEST.json cannot be read"),
    "manifest of another step": (manifest_of_another_step, "belongs to another checkpoint"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_taken(tmp_path: Path, damage: str) -> None:
    hurt, reason = DAMAGES[damage]
    save(tmp_path, 10)
    bad = save(tmp_path, 20)
    hurt(bad)
    loaded = load_newest(tmp_path)
    assert loaded is not None
    assert loaded.state["step"] == 10
    [(name, said)] = loaded.set_aside
    assert name == bad.name
    assert re.search(reason, said)
    assert not bad.exists()
    assert (tmp_path / contract.CHECKPOINTS / SET_ASIDE / bad.name / contract.MANIFEST).exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_with_no_good_checkpoint_left_every_attempt_fails_and_none_starts_over(
    tmp_path: Path, damage: str
) -> None:
    hurt, reason = DAMAGES[damage]
    folder = save(tmp_path, 20)
    hurt(folder)
    for _attempt in range(2):
        with pytest.raises(
            CheckpointCorruptError, match=f"no good checkpoint is left.*{folder.name}.*{reason}"
        ):
            load_newest(tmp_path)


def unread(folder: Path) -> Path:
    """Let the storage refuse a checkpoint's manifest with an input/output error; returns where it is kept."""
    kept = folder / "kept"
    (folder / contract.MANIFEST).rename(kept)
    (folder / contract.MANIFEST).symlink_to("/proc/self/mem")
    return kept


def test_a_checkpoint_that_cannot_be_read_is_passed_over_and_stays(tmp_path: Path) -> None:
    save(tmp_path, 10)
    newest = save(tmp_path, 20)
    unread(newest)
    loaded = load_newest(tmp_path)
    assert loaded is not None
    assert loaded.state["step"] == 10
    assert loaded.set_aside == ()
    [(name, reason)] = loaded.unreadable
    assert name == newest.name
    assert "Input/output error" in reason
    assert (newest / STATE_FILE).exists()


def test_the_storage_is_asked_again_before_work_is_given_up(tmp_path: Path) -> None:
    save(tmp_path, 10)
    newest = save(tmp_path, 20)
    kept = unread(newest)
    mended = threading.Timer(0.3, lambda: kept.replace(newest / contract.MANIFEST))
    mended.start()
    loaded = load_newest(tmp_path)
    mended.join()
    assert loaded is not None
    assert loaded.state["step"] == 20


@pytest.mark.parametrize(
    ("error", "tries"),
    [(OSError(5, "Input/output error"), checkpoint.READ_TRIES), (StorageError("s3://runs/r: silent"), 1)],
    ids=["a mount", "a bucket that was asked for 30 s"],
)
def test_only_a_storage_without_patience_of_its_own_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, tries: int
) -> None:
    save(tmp_path, 10)
    newest = save(tmp_path, 20)
    asked: list[str] = []

    def read(root: Root) -> tuple[StateDict, contract.Manifest]:
        asked.append(Path(root).name)
        if Path(root) == newest:
            raise error
        return really(root)

    really = checkpoint.read
    monkeypatch.setattr(checkpoint, "read", read)
    monkeypatch.setattr(checkpoint, "READ_PAUSE_SECONDS", 0.0)
    assert loaded_step(tmp_path) == 10
    assert asked.count(newest.name) == tries


@pytest.mark.parametrize("what", ["every checkpoint", "their folder"])
def test_where_none_can_be_read_nothing_starts_over(tmp_path: Path, what: str) -> None:
    folder = save(tmp_path, 10)
    if what == "every checkpoint":
        unread(folder)
    else:
        folder.parent.rename(tmp_path / "elsewhere")
        folder.parent.write_text("a file where a mount should be")
    with pytest.raises(CheckpointUnreadableError):
        load_newest(tmp_path)


def test_without_any_checkpoint_the_training_starts_afresh(tmp_path: Path) -> None:
    assert load_newest(tmp_path) is None


def test_what_a_dead_rank_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 10)
    half = tmp_path / contract.checkpoint(20, 1, 1)
    half.mkdir()
    (half / STATE_FILE).write_bytes(b"half")
    assert loaded_step(tmp_path) == 10
    assert half.exists(), "its writer may still be at it"


def test_a_half_written_folder_is_written_whole_by_the_next_one_to_reach_the_step(tmp_path: Path) -> None:
    half = tmp_path / contract.checkpoint(20, 1, 1)
    half.mkdir(parents=True)
    (half / STATE_FILE).write_bytes(b"half of something longer than what is to be written" * 100)
    save(tmp_path, 20)
    assert loaded_step(tmp_path) == 20


def test_a_step_that_is_saved_again_and_again_found_bad_is_set_aside_under_another_name(
    tmp_path: Path,
) -> None:
    save(tmp_path, 10)
    for _ in range(2):
        truncate(save(tmp_path, 20))
        assert loaded_step(tmp_path) == 10
    assert len(list((tmp_path / contract.CHECKPOINTS / SET_ASIDE).iterdir())) == 2


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ((90, 1, 3), (20, 2, 1)),
        ((90, 1, 1), (20, 1, 2)),
        ((10, 1, 1), (20, 1, 1)),
        ((99, 1, 9), (100, 1, 9)),
        ((5, 9, 1), (5, 10, 1)),
    ],
    ids=["later attempt", "later generation", "later step", "a digit more", "attempt with a digit more"],
)
def test_the_latest_lineage_wins_over_a_higher_step_of_one_that_was_given_up(
    tmp_path: Path, older: tuple[int, int, int], newer: tuple[int, int, int]
) -> None:
    save(tmp_path, *newer)
    save(tmp_path, *older)
    assert loaded_step(tmp_path) == newer[0]


numbers = st.tuples(st.integers(0, 300), st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=15, deadline=None)
@given(st.sets(numbers, min_size=1, max_size=6), st.integers(1, 4))
def test_pruning_keeps_the_newest_and_never_fewer_than_two(
    known: set[tuple[int, int, int]], keep: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for step, attempt, generation in known:
            save(root, step, attempt, generation)
        order = sorted(known, key=lambda k: (k[1], k[2], k[0]), reverse=True)
        assert [contract.lineage(c) for c in candidates(root)] == [(k[1], k[2], k[0]) for k in order]
        prune(root, keep)
        left = [contract.lineage(c) for c in candidates(root)]
        assert left == [(k[1], k[2], k[0]) for k in order][: max(2, keep)]
        assert load_newest(root) is not None


def test_pruning_removes_what_dead_ranks_left_half_written_and_nothing_that_may_be_in_the_making(
    tmp_path: Path,
) -> None:
    save(tmp_path, 20, 1, 2)
    old, new = (tmp_path / contract.checkpoint(*id) for id in [(90, 1, 1), (30, 1, 2)])
    for folder in (old, new, tmp_path / contract.CHECKPOINTS / "my-own-notes"):
        folder.mkdir()
    prune(tmp_path, 3)
    assert [f.name for f in (old, new) if f.exists()] == [new.name]
    assert (tmp_path / contract.CHECKPOINTS / "my-own-notes").exists()


def test_a_saver_writes_in_the_background_what_the_state_was_when_it_was_asked(tmp_path: Path) -> None:
    said: list[Saved] = []
    saver = Saver(tmp_path, 1, 1, every_steps=5, on_saved=said.append)
    held = state(5)
    assert (saver.due(4), saver.due(5)) == (False, True)
    saver.save(held, world_size=2, samples=320, sampler={"position": 5})
    held["parts"]["model"]["weight"].add_(1)
    saver.wait()
    loaded = load_newest(tmp_path)
    assert loaded is not None
    assert float(loaded.state["parts"]["model"]["weight"][0]) == 5.0
    assert (loaded.manifest.world_size, loaded.manifest.samples, loaded.manifest.parent) == (2, 320, None)
    assert [s.id for s in said] == [loaded.id]
    saver.save(state(10), world_size=1, samples=640, sampler={}, wait=True)
    loaded = load_newest(tmp_path)
    assert loaded is not None
    assert loaded.manifest.parent == said[0].id


@pytest.mark.parametrize(
    "content",
    [{"step": 5, "parts": {"user": lambda: 0}}, None],
    ids=["cannot be pickled", "folder is a file"],
)
def test_a_checkpoint_that_cannot_be_saved_is_told_and_does_not_end_the_training(
    tmp_path: Path, content: dict[str, Any] | None
) -> None:
    if content is None:
        (tmp_path / contract.CHECKPOINTS).write_text("in the way")
    errors: list[str] = []
    saver = Saver(tmp_path, 1, 1, on_error=errors.append)
    saver.save(content or state(5), world_size=1, samples=0, sampler={}, wait=True)
    [error] = errors
    assert error.startswith("cannot save checkpoint 0000000005-0001-0001: ")
    assert not list(tmp_path.glob(f"{contract.CHECKPOINTS}/*/{contract.MANIFEST}"))
