"""`python -m steadyray.run --config RECIPE [key=value ...]`: train by a recipe, in the driver of a Ray job.

The training below uses the public API only, as a user's script would.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadyray import contract
from steadyray.config import Recipe, RecipeError, load, parse
from steadyray.storage import inside, open_storage

if TYPE_CHECKING:
    import torch

    from steadyray.data import Split

MODEL_FILE = "model.pt"


def train(config: dict[str, Any]) -> dict[str, Any] | None:
    """One rank's training by a recipe; returns the test metrics and the model's path from rank 0."""
    import torch

    import steadyray
    from steadyray import data, models

    recipe = parse(config["recipe"], "recipe")
    dataset = data.make(recipe.data.name, recipe.data.options)
    torch.manual_seed(recipe.seed)
    model = models.make(recipe.model.name, recipe.model.options)
    optimizer = _optimizer(recipe, model)
    sampler = steadyray.Sampler(
        len(dataset.train), recipe.batch_size, epochs=recipe.epochs, steps=recipe.steps, seed=recipe.seed
    )
    loss = getattr(torch.nn.functional, recipe.loss)
    state = steadyray.State(model=model, optimizer=optimizer, sampler=sampler)
    rank = 0
    for generation in steadyray.generations(state):
        rank = generation.rank
        with generation:
            ddp = generation.wrap(model)
            metrics: dict[str, float] = {}
            for step in generation.steps(sampler):
                began = time.monotonic()
                if sampler.starts_epoch and sampler.position > 0:
                    with generation.phase("eval"):
                        metrics = evaluate(model, dataset.validation, recipe.loss)
                optimizer.zero_grad()
                for part in step.micro_batches(recipe.micro_batch_size):
                    x = dataset.train.x[part].to(generation.device)
                    y = dataset.train.y[part].to(generation.device)
                    step.backward(loss(ddp(x), y, reduction="sum"))
                optimizer.step()
                _stretch(began, recipe.step_seconds)
                step.commit(**{f"validation_{name}": value for name, value in metrics.items()})
    if rank != 0:
        return None
    storage = config["storage"] or "."
    with open_storage(storage).write_file(MODEL_FILE) as path:
        models.save(model.cpu(), config["recipe"], str(path))
    return {
        **{f"test_{k}": v for k, v in evaluate(model, dataset.test, recipe.loss).items()},
        "model": inside(storage, MODEL_FILE),
    }


def evaluate(model: torch.nn.Module, split: Split, loss: str) -> dict[str, float]:
    """Mean loss over a split, and the accuracy (0..1) where the targets are classes."""
    import torch

    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        output = model(split.x.to(device)).cpu()
    model.train(was_training)
    metrics = {"loss": float(getattr(torch.nn.functional, loss)(output, split.y))}
    if not split.y.is_floating_point():
        metrics["accuracy"] = float((output.argmax(1) == split.y).float().mean())
    return metrics


def train_candidates(recipe: Recipe, config: dict[str, Any]) -> dict[str, Any]:
    """Train several models in parallel as Ray tasks and keep the one with the lowest *validation* loss."""
    import ray
    import torch

    from steadyray import data, models, progress

    remote = ray.remote(num_cpus=recipe.workers.cpus, max_retries=3)(train_one)
    pending = {remote.remote(config["recipe"], seed): seed for seed in range(recipe.candidates)}
    found: list[tuple[float, int, dict[str, Any]]] = []
    while pending:
        done, _ = ray.wait(list(pending))
        seed = pending.pop(done[0])
        loss, state = ray.get(done[0])
        found.append((loss, seed, state))
        print(f"candidate {seed}: validation loss {loss:.6f}", flush=True)
        progress.step(len(found), total=recipe.candidates, loss=loss)
    loss, seed, state = min(found, key=lambda item: item[:2])
    model = models.make(recipe.model.name, recipe.model.options)
    model.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
    storage = config["storage"] or "."
    with open_storage(storage).write_file(MODEL_FILE) as path:
        models.save(model, config["recipe"], str(path))
    dataset = data.make(recipe.data.name, recipe.data.options)
    test = evaluate(model, dataset.test, recipe.loss)
    return {
        "best_candidate": seed,
        "validation_loss": loss,
        **{f"test_{name}": value for name, value in test.items()},
        "model": inside(storage, MODEL_FILE),
    }


def train_one(content: dict[str, Any], seed: int) -> tuple[float, dict[str, Any]]:
    """One candidate, in one process: its validation loss and its weights as arrays."""
    import torch

    from steadyray import data, models
    from steadyray.sampler import Sampler

    recipe = parse(content, "recipe")
    dataset = data.make(recipe.data.name, recipe.data.options)
    torch.manual_seed(seed)
    model = models.make(recipe.model.name, recipe.model.options)
    optimizer = _optimizer(recipe, model)
    loss = getattr(torch.nn.functional, recipe.loss)
    sampler = Sampler(
        len(dataset.train), recipe.batch_size, epochs=recipe.epochs, steps=recipe.steps, seed=seed
    )
    while sampler.position < sampler.total_steps:
        batch = sampler.batch()
        optimizer.zero_grad()
        loss(model(dataset.train.x[batch]), dataset.train.y[batch]).backward()
        optimizer.step()
        sampler.position += 1
    validation = evaluate(model, dataset.validation, recipe.loss)["loss"]
    return validation, {name: value.numpy() for name, value in model.state_dict().items()}


def _optimizer(recipe: Recipe, model: torch.nn.Module) -> torch.optim.Optimizer:
    import torch

    kind = getattr(torch.optim, recipe.optimizer.name)
    made: torch.optim.Optimizer = kind(model.parameters(), lr=recipe.optimizer.lr, **recipe.optimizer.options)
    return made


def _stretch(began: float, seconds: float) -> None:
    if (rest := began + seconds - time.monotonic()) > 0:
        time.sleep(rest)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m steadyray.run", description=__doc__)
    parser.add_argument("--config", required=True, type=Path, help="recipe (YAML)")
    parser.add_argument("overrides", nargs="*", help="key=value, for example optimizer.lr=0.05")
    given = parser.parse_args(arguments)
    try:
        recipe = load(given.config, given.overrides)
    except RecipeError as error:
        print(error, file=sys.stderr)
        return 2
    storage = os.environ.get(contract.ENV_RUN_DIR)
    config = {"recipe": recipe.model_dump(), "storage": storage}
    result = train_candidates(recipe, config) if recipe.candidates > 1 else _train_group(recipe, config)
    print(json.dumps(result, default=str), flush=True)
    return 0


def _train_group(recipe: Recipe, config: dict[str, Any]) -> dict[str, Any]:
    import steadyray
    from steadyray.group import TrainingFailed

    workers = recipe.workers
    try:
        return steadyray.run(
            train,
            config,
            workers=(workers.min, workers.max),
            spares=workers.spares,
            storage=config["storage"],
            cpus_per_worker=workers.cpus,
            gpus_per_worker=workers.gpus,
            threads_per_worker=workers.threads,
            spare_capacity=workers.spare_capacity,
            seed=recipe.seed,
            checkpoint_seconds=recipe.checkpoints.every_seconds,
            checkpoint_steps=recipe.checkpoints.every_steps,
            patience=steadyray.Patience(
                hang_floor=recipe.hang.floor_seconds, hang_alone=recipe.hang.alone_seconds
            ),
        )
    except TrainingFailed as error:
        print(error.failure.traceback, file=sys.stderr)
        print(f"steadyray: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.failure.exit_code or 1) from None


if __name__ == "__main__":
    sys.exit(main())
