"""The training that the fault tests hurt: `python hurt_driver.py '{"steps": 200}'`. No test by itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

import ray
import steadyray


def train(config: dict[str, Any]) -> dict[str, Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    norm = nn.Identity() if config.get("without_buffers") else nn.BatchNorm1d(64)
    model = nn.Sequential(nn.Linear(10, 64), norm, nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x = torch.randn(512, 10, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True)
    sampler = steadyray.Sampler(len(x), 64, steps=config["steps"], seed=3)
    odd = {"odd": slow_to_copy(config["copy_seconds"])} if "copy_seconds" in config else {}
    if config.get("unloadable"):
        odd = {"odd": unloadable()}
    state = steadyray.State(model=model, optimizer=optimizer, sampler=sampler, **odd)
    for generation in steadyray.generations(state):
        with generation:
            ddp = generation.wrap(model)
            for step in generation.steps(sampler):
                if step.number == config.get("hold", [-1])[0]:
                    with generation.phase("hold", patience=300):
                        wait_for(config["hold"][1])
                if step.number == 30 and config.get("phase_seconds"):
                    with generation.phase("eval", patience=60):
                        time.sleep(config["phase_seconds"] * generation.rank)
                optimizer.zero_grad()
                for indices in step.micro_batches(16):
                    time.sleep(config["sleep"])
                    loss = ((ddp(x[indices]) - y[indices]) ** 2).sum()
                    if config.get("own_backward"):
                        step.loss(loss).backward()
                    else:
                        step.backward(loss)
                optimizer.step()
                go_wrong(config, generation.rank, step.number)
                step.commit()
    return {"loss": float(((model.eval()(x) - y) ** 2).mean().detach()), "seen": sampler.position}


def slow_to_copy(seconds: float) -> Any:
    """A model whose copy for the second checkpoint takes long."""
    from torch import nn

    class Slow(nn.Module):
        copies = 0

        def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            self.copies += 1
            if self.copies == 2:
                time.sleep(seconds)
            return {}

        def load_state_dict(self, *args: Any, **kwargs: Any) -> None: ...  # type: ignore[override]

    return Slow()


def unloadable() -> Any:
    """What a user changed since its state was written."""
    from torch import nn

    class Unloadable(nn.Module):
        def load_state_dict(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
            raise RuntimeError("Error(s) in loading state_dict: size mismatch for head.weight")

    return Unloadable()


class Deadly:
    """A dataset whose reader is killed, as by the kernel when memory is short."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.02)


def go_wrong(config: dict[str, Any], rank: int, step: int) -> None:
    """What the user's code does wrong, once: on `rank` at `at`."""
    fault = config.get("fault")
    if fault is None or rank != 1 or step != config["at"]:
        return
    if "once" in config:
        if os.path.exists(config["once"]):
            return
        with open(config["once"], "w"):
            pass
    if fault == "raise":
        raise ValueError("the batch has a column too many")
    if fault == "exit":
        sys.exit(3)
    if fault == "loader":
        from torch.utils.data import DataLoader

        next(iter(DataLoader(Deadly(), num_workers=1)))  # type: ignore[arg-type]
    while fault == "loop":
        pass
    if fault == "slow":
        time.sleep(config["seconds"])


def main() -> None:
    settings = {
        "steps": 150,
        "sleep": 0.01,
        "workers": [1, 2],
        "spares": 1,
        "cpus": 6,
        **json.loads(sys.argv[1]),
    }
    # Ray's sockets lie below this folder, and their paths must be short.
    temporary = tempfile.mkdtemp(prefix="sr-", dir="/tmp")
    if "RAY_ADDRESS" not in os.environ:  # in a job of a cluster it is set
        ray.init(
            num_cpus=settings["cpus"],
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            _temp_dir=temporary,
        )
    smallest, largest = settings["workers"]
    try:
        result = steadyray.run(
            train, settings, workers=(smallest, largest), spares=settings["spares"],
            checkpoint_steps=settings.get("checkpoint_steps", 20),
            patience=steadyray.Patience(**settings.get("patience", {})),
        )  # fmt: skip
        print("RESULT", json.dumps(result), flush=True)
    finally:
        ray.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


if __name__ == "__main__":
    main()
