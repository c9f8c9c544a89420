"""Rules for the files of the repository that no linter knows."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

# In two halves, so that this file does not contain what it forbids.
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "crates" + ".io",
    "proxy.golang" + ".org",
]
MACHINE_PATHS = [r"(?<![\w./-])/" + name + r"/\w" for name in ("root", "work")]
UNFINISHED = ["TO" + "DO", "FIX" + "ME", "X" + "XX"]


def _lines_with(pattern: str, files: list[Path]) -> list[str]:
    found = []
    for path in files:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.name}:{n}: {line}"
            for n, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line)
        ]
    return found


@pytest.mark.parametrize("host", REGISTRIES)
def test_no_file_names_the_host_of_a_registry(host: str, tracked: list[Path]) -> None:
    assert _lines_with(re.escape(host), tracked) == []


@pytest.mark.parametrize("pattern", MACHINE_PATHS)
def test_no_file_names_a_path_of_the_machine_it_was_written_on(pattern: str, tracked: list[Path]) -> None:
    assert _lines_with(pattern, tracked) == []


@pytest.mark.parametrize("word", UNFINISHED)
def test_nothing_is_marked_as_unfinished(word: str, tracked: list[Path]) -> None:
    assert _lines_with(rf"\b{word}\b", tracked) == []


@pytest.mark.parametrize(
    "lock",
    [
        "requirements/run.txt",
        "requirements/dev.txt",
        "requirements/uv.txt",
        "training_image/requirements.lock",
    ],
)
def test_every_package_of_a_lock_has_hashes_and_no_address(lock: str, root: Path) -> None:
    text = (root / lock).read_text()
    blocks = re.split(r"\n(?=[A-Za-z])", text.split("\n", 2)[2])
    assert blocks
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in text


@pytest.mark.parametrize("folder", [".", "training_image"])
def test_every_file_of_a_package_that_is_shipped_is_there(folder: str, root: Path) -> None:
    data = tomllib.loads((root / folder / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    wanted = [(package, pattern) for package, patterns in data.items() for pattern in patterns]
    assert [w for w in wanted if not any((root / folder / w[0]).glob(w[1]))] == []
    assert [package for package in data if (package, "py.typed") not in wanted] == []


def test_every_python_source_file_says_why_it_exists(tracked: list[Path], root: Path) -> None:
    packages = (root / "ops", root / "training_image/steadyray")
    sources = [
        p for p in tracked if p.suffix == ".py" and any(p.is_relative_to(folder) for folder in packages)
    ]
    assert [str(p) for p in sources if p.stat().st_size and not p.read_text().startswith('"""')] == []


def test_every_makefile_target_has_a_remark_and_is_phony(root: Path) -> None:
    text = (root / "Makefile").read_text()
    targets = re.findall(r"^([a-z][\w-]*):(?!=)(.*)$", text, re.MULTILINE)
    assert targets
    assert [name for name, rest in targets if "## " not in rest] == []
    assert [name for name, _ in targets if f".PHONY: {name}\n" not in text] == []


def test_plain_make_prints_every_target(root: Path) -> None:
    shown = subprocess.run(["make"], cwd=root, check=True, capture_output=True, text=True).stdout
    targets = re.findall(r"^([a-z][\w-]*):(?!=)", (root / "Makefile").read_text(), re.MULTILINE)
    assert [name for name in targets if not re.search(rf"^  {name} ", shown, re.MULTILINE)] == []


def test_every_target_that_a_document_names_exists(tracked: list[Path], root: Path) -> None:
    makefile = (root / "Makefile").read_text()
    named = {
        target
        for path in tracked
        if path.suffix == ".md"
        for target in re.findall(r"(?:`|^ {4})make ([a-z][\w-]*)", path.read_text(), re.MULTILINE)
    }
    assert named
    assert [target for target in sorted(named) if f"\n{target}:" not in makefile] == []


def test_every_relative_link_of_a_document_leads_to_a_file(tracked: list[Path]) -> None:
    broken = [
        f"{path.name}: {target}"
        for path in tracked
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_no_process_of_ours_takes_a_file_of_the_current_folder_for_a_package(
    tracked: list[Path], root: Path
) -> None:
    """Without -P, a person's own ops.py or yaml.py would stand before the real one."""
    ours = [path for path in tracked if path.suffix == ".py" and path.is_relative_to(root / "ops")]
    assert len(_lines_with(r'sys\.executable, "-P", ', ours)) > 4
    assert _lines_with(r'sys\.executable, "-[mc]", "(ops|steadyray|ray)\b', ours) == []


def test_contributors_are_sent_to_files_that_define_what_is_said_to_be_there(root: Path) -> None:
    text = (root / "CONTRIBUTING.md").read_text()
    told = re.findall(r"`([A-Z_]+)`\s+in\s+`([\w/]+\.py)`", text)
    assert ("TREATMENTS", "ops/policy/treatments.py") in told
    assert [(n, p) for n, p in told if not re.search(rf"^{n}\b.* =", (root / p).read_text(), re.M)] == []
