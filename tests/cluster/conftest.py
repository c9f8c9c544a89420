"""What the tests of the local cluster share: one cluster for most of them, and the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_support import Jobs

from ops.adapters.local_cluster import ClusterConnection
from ops.cli import run


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., ClusterConnection]) -> ClusterConnection:
    return make_cluster({"idle_seconds": 5, "groups": {"cpu": {"max": 3}, "gpu": {"max": 1}}})


@pytest.fixture(scope="module")
def jobs(cluster: ClusterConnection) -> Jobs:
    return Jobs(cluster)


@pytest.fixture
def steadyray(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run one command line; its exit code, stdout and stderr."""

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return command
