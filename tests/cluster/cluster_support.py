"""Jobs over HTTP and waits on conditions, for the tests of the local cluster."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from ops.adapters.local_cluster import ClusterConnection

T = TypeVar("T")


def until(what: str, condition: Callable[[], T | None], seconds: float = 90.0) -> T:
    """Wait for a condition and return what it gave; fail with its name."""
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


class Jobs:
    """Jobs of one cluster, whose drivers sit on worker nodes."""

    def __init__(self, cluster: ClusterConnection) -> None:
        self.cluster = cluster
        self.client = httpx.Client(
            base_url=cluster.dashboard_url, headers={"Authorization": f"Bearer {cluster.token}"}, timeout=30
        )

    def submit(self, script: Path, *arguments: str, **more: Any) -> str:
        entrypoint = shlex.join([sys.executable, "-u", str(script), *arguments])
        body = {"entrypoint": entrypoint, "entrypoint_resources": {"steadyray_worker": 0.001}, **more}
        answer = self.client.post("/api/jobs/", json=body)
        answer.raise_for_status()
        return str(answer.json()["submission_id"])

    def status(self, job: str) -> str:
        try:
            return str(self.client.get(f"/api/jobs/{job}").json()["status"])
        except (httpx.HTTPError, KeyError, ValueError):
            return "no answer"

    def logs(self, job: str) -> str:
        return str(self.client.get(f"/api/jobs/{job}/logs").json()["logs"])

    def wait(self, job: str, status: str, seconds: float = 90.0) -> None:
        seen = until(
            f"{job} is {status}",
            lambda: (s := self.status(job)) in {status, "FAILED", "SUCCEEDED"} and s,
            seconds,
        )
        assert seen == status, self.logs(job)
