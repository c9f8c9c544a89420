"""From a cluster's name or address to a client for it, and to whoever can make it again."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ops import profile
from ops.adapters import local_cluster
from ops.adapters.ray_http import RayHttp
from ops.errors import ClusterError, NotFoundError, OpsTimeoutError, UnreachableError, UsageError
from ops.policy.resubmission import WORKER_NODE
from ops.ports import Remains

WORKER_RESOURCE = {WORKER_NODE: 0.001}
"""Every worker node of a cluster of ours has 1000 of it and the head none, so a driver lands on a worker."""
RECENT_SECONDS = 120.0
"""A node that did not start before that is another story: the autoscaler tries again within seconds."""
SOME_CPU = 0.01
"""What a driver asks for elsewhere: it must ask for something, or Ray starts it on the head."""


@dataclass(frozen=True)
class LocalMaker:
    """A cluster made by `steadyray cluster up` on this machine."""

    name: str

    def connect(self) -> RayHttp:
        """Raises NotFoundError where nothing is left of it, UnreachableError where it is half gone."""
        at = local_cluster.connection(self.name)
        found = local_cluster.find(self.name)
        if found is not None and found.elsewhere:
            # its address is a loopback one: whatever answers there on this host is another cluster
            raise UnreachableError(
                f"cluster {self.name!r} belongs to host {found.cluster['host']['name']}",
                hint="look after the run there",
            )
        try:
            return RayHttp(at.dashboard_url, at.token, environment=self.environment())
        except OSError as error:
            raise UnreachableError(
                f"cluster {self.name!r} has no token: {error}",
                hint=f"steadyray cluster up --name {self.name}",
            ) from error

    def remains(self) -> Remains:
        """Without a `cluster.json` it was ended here, or could not be made again; a home that never knew the
        name tells nothing."""
        found = local_cluster.find(self.name)
        if found is None:
            return Remains.NOTHING if local_cluster.known(self.name) else Remains.KEPT
        if found.elsewhere or found.keeper is not None:
            return Remains.KEPT
        return Remains.UNKEPT if found.processes else Remains.NOTHING

    def keep(self) -> None:
        local_cluster.keep(self.name)

    def failed_start(self) -> str:
        failed = local_cluster.folder_of(self.name).read_failed_starts()
        if not failed or time.time() - (failed[-1].time or 0.0) > RECENT_SECONDS:
            return ""
        last = failed[-1]
        return f"A node of group {last.group} did not start: {last.why.rstrip('.')}; see {last.log}"

    def make(self) -> None:
        """Raises ClusterError, whatever went wrong: the run outlives a cluster that is not made at once."""
        folder = local_cluster.folder_of(self.name)
        try:
            local_cluster.up(profile.load(folder.profile_file))
        except (UsageError, OpsTimeoutError) as error:
            again = f"steadyray cluster up --name {self.name}"
            raise ClusterError(
                f"cluster {self.name!r} was not made: {error}; type: {again}", hint=again
            ) from error

    def environment(self) -> dict[str, str]:
        """The cluster runs with this Python, so jobs find the same one as `python`."""
        return {"PATH": f"{Path(sys.executable).parent}:${{PATH}}"}

    def driver(self) -> tuple[float, dict[str, float]]:
        return 0.0, dict(WORKER_RESOURCE)

    def hidden(self) -> tuple[str, ...]:
        try:
            return (local_cluster.connection(self.name).token,)
        except (NotFoundError, OSError):
            return ()


@dataclass(frozen=True)
class AddressMaker:
    """A cluster of somebody else, known by its dashboard's address; nobody here can make it again."""

    url: str
    token_file: str = ""
    """Of the run; without one it is where Ray's own clients look."""

    def connect(self) -> RayHttp:
        return RayHttp(self.url, self._token())

    def _token(self) -> str:
        return read_token(self.token_file, "--token-file") if self.token_file else token_from_environment()

    def remains(self) -> Remains:
        return Remains.KEPT

    def keep(self) -> None:
        """Whoever made it looks after it."""

    def failed_start(self) -> str:
        return ""

    def make(self) -> None:
        raise UsageError(
            f"{self.url} was not made by steadyray", hint="start it again, then `steadyray job run NAME`"
        )

    def environment(self) -> dict[str, str]:
        return {}

    def driver(self) -> tuple[float, dict[str, float]]:
        return SOME_CPU, {}

    def hidden(self) -> tuple[str, ...]:
        token = self._token()
        return (token,) if token else ()


def token_from_environment() -> str:
    """As Ray's own clients find it: RAY_AUTH_TOKEN, then the file of RAY_AUTH_TOKEN_PATH."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return read_token(path, "RAY_AUTH_TOKEN_PATH") if path else ""


def read_token(path: str, named_by: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "no text"
        raise UsageError(f"{named_by}: {path}: {why}", hint="name a readable file with the token") from error


def maker(cluster: str, token_file: str = "") -> LocalMaker | AddressMaker:
    return AddressMaker(cluster, token_file) if "://" in cluster else LocalMaker(cluster)
