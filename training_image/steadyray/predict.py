"""`python -m steadyray.predict RUN_DIR`: use the model of a finished run. For `steadyray job predict`.

With `--input FILE.csv` (one row an example, no header) it predicts those rows; without it the held-out part
of the run's own data, together with the metrics on it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steadyray import data, models
from steadyray.run import MODEL_FILE, evaluate
from steadyray.storage import open_storage


def predict(run_dir: str, rows: Path | None, count: int) -> dict[str, Any]:
    """Predictions of the first `count` examples. Raises OSError or ValueError for what is not there."""
    with open_storage(run_dir).read_file(MODEL_FILE) as path:
        model, recipe = models.load(str(path))
    if rows is not None:
        x = torch.from_numpy(np.loadtxt(rows, delimiter=",", dtype=np.float32, ndmin=2))
        return {"predictions": _answers(model, x[:count], recipe["loss"])}
    held_out = data.make(recipe["data"]["name"], recipe["data"]["options"]).test
    return {
        "predictions": _answers(model, held_out.x[:count], recipe["loss"]),
        "targets": held_out.y[:count].reshape(-1).tolist(),
        **{f"test_{name}": value for name, value in evaluate(model, held_out, recipe["loss"]).items()},
    }


def _answers(model: torch.nn.Module, x: torch.Tensor, loss: str) -> list[Any]:
    with torch.no_grad():
        output = model(x)
    chosen = output.argmax(1) if loss == "cross_entropy" else output.reshape(-1)
    answers: list[Any] = chosen.tolist()
    return answers


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m steadyray.predict", description=__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("--input", type=Path, help="CSV file, one row an example")
    parser.add_argument("--count", type=int, default=10, help="examples to show")
    given = parser.parse_args(arguments)
    try:
        print(json.dumps(predict(given.run_dir, given.input, given.count)))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
