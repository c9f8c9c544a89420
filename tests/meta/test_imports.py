"""What import-linter cannot say: which parts of one package another may see, by name.

The layers themselves are in .importlinter and are checked by `make lint`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_contract_needs_the_standard_library_only(root: Path) -> None:
    contract = root / "training_image/steadyray/contract.py"
    assert {name.split(".")[0] for name in _imports(contract)} <= sys.stdlib_module_names


SHARED = ("steadyray.contract.", "steadyray.folder.", "steadyray.storage.")


def test_the_tools_see_nothing_of_the_library_but_the_contract_and_its_storage(root: Path) -> None:
    seen = {
        f"{path.relative_to(root)}: {name}"
        for path in (root / "ops").rglob("*.py")
        for name in _imports(path)
        if name.split(".")[0] == "steadyray" and not f"{name}.".startswith(SHARED)
    }
    assert seen == set()


def test_the_policy_asks_no_clock(root: Path) -> None:
    asked = {
        f"{path.name}: {node.attr}"
        for path in (root / "ops/policy").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today", "monotonic"}
        if not (isinstance(node.value, ast.Name) and node.value.id in {"view", "self"})
    }
    assert asked == set()


def test_the_contract_is_imported_without_torch_and_ray(root: Path) -> None:
    heavy = "{'torch', 'ray', 'numpy', 'ops'}"
    code = f"import sys, steadyray.contract, steadyray.storage; print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "[]"


def test_the_import_contract_names_every_use_case(root: Path) -> None:
    """A use case that is not listed in .importlinter is not checked."""
    listed = (root / ".importlinter").read_text()
    shared = {"__init__", "config", "errors", "output", "ports", "profile"}
    use_cases = {path.stem for path in (root / "ops").glob("*.py")} - shared
    assert {name for name in use_cases if f"    ops.{name}\n" not in listed} == set()
