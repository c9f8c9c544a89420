"""Real local clusters for the tests: made on demand, free ports, always ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ops import profile, render
from ops.adapters import local_cluster
from ops.adapters.local_cluster import ClusterConnection

MakeCluster = Callable[..., ClusterConnection]

SMALL: dict[str, Any] = {
    "head": {"gcs_port": 0, "dashboard_port": 0},
    "groups": {"cpu": {"min": 0, "max": 4}, "gpu": {"min": 0, "max": 2}},
    "idle_seconds": 120,
}


@pytest.fixture(scope="session")
def steadyray_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of this test session, so that tests never see a user's clusters and runs."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEADYRAY_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def small_profile() -> Callable[[dict[str, Any]], profile.Profile]:
    """The profile `local` as the tests use it: free ports, nodes that stay; with what is laid over it."""
    return lambda over: profile.load(render.profile_path("local"), profile.merge(SMALL, over))


@pytest.fixture(scope="session")
def make_cluster(
    steadyray_home: Path, small_profile: Callable[[dict[str, Any]], profile.Profile]
) -> Iterator[MakeCluster]:
    """`make_cluster({"groups": {"cpu": {"min": 2}}})` starts a cluster that is ended with the session.

    Overrides are laid over the profile `local` with free ports. End one early with
    `local_cluster.down(name)`.
    """
    made: list[str] = []
    numbers = itertools.count(1)

    def make(overrides: dict[str, Any] | None = None) -> ClusterConnection:
        wanted = small_profile({"name": f"test-{next(numbers)}", **(overrides or {})})
        made.append(wanted.name)
        return local_cluster.up(wanted)

    yield make
    for name in made:
        local_cluster.down(name)
