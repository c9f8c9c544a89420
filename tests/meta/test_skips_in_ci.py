"""The root conftest.py turns skips into failures when CI=true, and leaves a laptop alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPING = {
    "in a test": "import pytest\ndef test_one():\n    pytest.skip('no such thing here')\n",
    "by a mark": "import pytest\n@pytest.mark.skip(reason='no such thing here')\ndef test_one(): pass\n",
    "of a whole module": "import pytest\npytest.skip('no such thing here', allow_module_level=True)\n",
}


def _pytest(folder: Path, ci: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "CI": ci})


@pytest.fixture(params=list(SKIPPING))
def skipping(request: pytest.FixtureRequest, tmp_path: Path, root: Path) -> Path:
    (tmp_path / "conftest.py").write_text((root / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(SKIPPING[request.param])
    return tmp_path


def test_a_skip_fails_in_ci_and_gives_its_reason(skipping: Path) -> None:
    run = _pytest(skipping, ci="true")
    assert run.returncode not in {0, 5}
    assert "skipped, which CI does not accept: " in run.stdout
    assert "no such thing here" in run.stdout


def test_a_skip_is_accepted_on_a_laptop(skipping: Path) -> None:
    assert _pytest(skipping, ci="").returncode in {0, 5}


def test_an_expected_failure_is_accepted_in_ci(tmp_path: Path, root: Path) -> None:
    (tmp_path / "conftest.py").write_text((root / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.xfail\ndef test_one(): assert False\n")
    assert _pytest(tmp_path, ci="true").returncode == 0
