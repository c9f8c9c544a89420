"""docs/architecture.md shows the run directory; `steadyray.contract` makes its paths."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from steadyray import contract

from ops.adapters.local_nodes import ClusterFolder

PATHS = [
    contract.SPEC,
    contract.RESULT,
    contract.STOP_REQUEST,
    contract.MANIFEST,
    contract.lease(1),
    contract.started(1),
    contract.progress(1),
    contract.failure(1),
]
FOLDERS = [
    contract.CODE,
    contract.CHECKPOINTS,
    contract.rank_progress(1, 0),
    contract.evidence(1, "x"),
    contract.action("x", 1),
    contract.event("x", 1),
]


@pytest.fixture
def shown(root: Path) -> str:
    text = (root / "docs/architecture.md").read_text()
    return text.partition("## The run directory")[2].partition("\n## ")[0]


@pytest.mark.parametrize("path", PATHS)
def test_a_file_of_the_run_directory_is_shown(path: str, shown: str) -> None:
    assert PurePosixPath(path).name in shown


@pytest.mark.parametrize("path", FOLDERS)
def test_a_folder_of_the_run_directory_is_shown(path: str, shown: str) -> None:
    folders = [
        part for part in PurePosixPath(path).parts if "." not in part and part.isalpha() and len(part) > 1
    ]
    assert folders
    assert [folder for folder in folders if f"{folder}/" not in shown] == []


def test_each_file_of_a_clusters_folder_is_shown(root: Path) -> None:
    text = (root / "docs/architecture.md").read_text()
    shown = text.partition("## A local cluster")[2].partition("\n## ")[0]
    named = [name for name, value in vars(ClusterFolder).items() if isinstance(value, property)]
    paths = [getattr(ClusterFolder(Path("any")), name).name for name in named]
    assert "keeper.log" in paths
    assert [path for path in paths if path not in shown] == []


def test_each_depth_of_recovery_is_explained(root: Path) -> None:
    text = (root / "docs/architecture.md").read_text()
    assert [depth for depth in contract.Depth if f"| `{depth}` |" not in text] == []
