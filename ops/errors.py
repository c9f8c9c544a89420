"""Every expected failure of Steadyray, with what to type next and the exit code it leads to.

Raised by use cases and adapters (which translate library exceptions once), shown by `ops.cli.main`.
"""

from __future__ import annotations


class OpsError(Exception):
    """A failure that is no bug. `hint` says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(OpsError):
    """What was asked for makes no sense: an unknown key, a bad value."""

    exit_code = 2


class RefusedError(OpsError):
    """Policy or a missing confirmation says no."""

    exit_code = 3


class OpsTimeoutError(OpsError):
    """It did not happen within the time that was given."""

    exit_code = 4


class NotFoundError(OpsError):
    """There is no cluster, node or run of that name."""


class ClusterError(OpsError):
    """A cluster could not be made, reached or changed."""


class AuthError(ClusterError):
    """The cluster is there and says no: wrong or missing token. Never an outage."""

    exit_code = 5


class UnreachableError(ClusterError):
    """Nothing answered: refused, cut or too slow. Says nothing about the cluster's health."""


class ServerError(ClusterError):
    """Something answered with 5xx. The cluster may be well all the same; a later try may do."""


class BadRequestError(ClusterError):
    """The cluster understood the request and refused it; a later try will not do."""


class StoreError(OpsError):
    """The run storage refused or ignored an operation."""


class RunGoneError(StoreError):
    """The run directory itself is not there any more."""

    def __init__(self, run: str, url: str, cluster: str = "local") -> None:
        where = "" if cluster == "local" else f" --cluster {cluster}"
        super().__init__(
            f"run {run} has lost its directory {url}: it was removed, or its disk is not mounted. A job of "
            "the run goes on, but nothing that it saves there is kept",
            hint="bring the directory back, and it goes on by itself; or end the job: "
            f"steadyray job stop {run}{where}",
        )
