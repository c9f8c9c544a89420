"""The loop in this very process, without Ray: what is saved at its end, and what an optimiser may not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import steadyray
import steadyray.rundir
import torch
from steadyray import checkpoint, contract, session
from steadyray.messages import Settings
from steadyray.session import LocalSession


def loop(root: Path, *, steps: int, early: bool = False, checkpoint_steps: int | None = None) -> torch.Tensor:
    """Train so many steps with checkpoints in `root`; `early` steps inside the micro batches.

    Returns the last loss that was handed over.
    """
    settings = Settings(root, checkpoint_seconds=None, checkpoint_steps=checkpoint_steps)
    session.set_current(LocalSession(settings))
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = steadyray.Sampler(8, 4, steps=steps)
    state = steadyray.State(model=model, optimizer=optimizer, sampler=sampler)
    given = torch.zeros(())
    try:
        for generation in steadyray.generations(state):
            with generation:
                for step in generation.steps(sampler):
                    optimizer.zero_grad()
                    for part in step.micro_batches(2):
                        given = model(torch.ones(len(part), 2, dtype=torch.float64)).sum()
                        step.backward(given)
                        if early:
                            optimizer.step()
                    optimizer.step()
                    step.commit()
    finally:
        session.set_current(None)
    return given.detach()


def saved(root: Path) -> list[str]:
    return sorted(checkpoint.candidates(root))


def test_the_last_checkpoint_is_tried_again_where_its_write_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failed = checkpoint.write, []

    def fail_once(folder: str, *arguments: Any) -> int:
        if Path(folder).name.startswith("0000000004") and not failed:
            failed.append(folder)
            raise OSError("the disk is full")
        return write(folder, *arguments)

    monkeypatch.setattr(checkpoint, "write", fail_once)
    loop(tmp_path, steps=4, checkpoint_steps=2)
    assert failed
    assert saved(tmp_path)[-1] == "0000000004-0001-0001"


def test_a_second_run_over_the_same_folder_saves_above_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a supervisor nobody numbers its attempts, and older than the first it would be pruned."""
    monkeypatch.delenv(contract.ENV_ATTEMPT, raising=False)
    for step in (2, 4, 6):
        folder = tmp_path / contract.checkpoint(step, 1, 2)
        torch.manual_seed(0)
        checkpoint.write(folder, {"step": 0}, contract.Manifest(step, 1, 2, {}))
    assert steadyray.rundir.own_attempt(tmp_path) == 2
    monkeypatch.setenv(contract.ENV_ATTEMPT, "7")
    assert steadyray.rundir.own_attempt(tmp_path) == 7


def test_an_optimiser_that_steps_between_micro_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="after the loop over the micro batches"):
        loop(tmp_path, steps=2, early=True)


def test_a_loss_in_double_precision_stays_the_callers_own(tmp_path: Path) -> None:
    given = loop(tmp_path, steps=1)
    assert given.dtype is torch.float64
    assert given.item() != 0.0
