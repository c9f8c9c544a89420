"""Ray over HTTP: Jobs API, packages, state API and cluster status of one head, with its bearer token.

No Ray is imported, so versions need not match. Every failure is translated here, once: nothing answered,
the token is wrong, no such thing, a bad request, or a server that errs. The wordings matched below are
those of Ray 2.60.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from ops.adapters import ray_releases
from ops.errors import AuthError, BadRequestError, ClusterError, NotFoundError, ServerError, UnreachableError
from ops.policy.model import Capacity, JobStatus, JobView
from ops.ports import JobRequest, NodeView

REQUEST_SECONDS = 10.0
"""Patience for one answer. A head under load takes 2 s; slower is counted as silence and asked again."""
RETRY_SECONDS = 6.0
"""How long one call repeats itself; longer waits belong to the supervisor's tick, which must stay bounded."""
LOG_BYTES = 256 * 1024

END_PENDING = """
import ray
ray.init(address="auto", namespace="{namespace}", log_to_driver=False)
try:
    ray.kill(ray.get_actor("{actor}", namespace="{namespace}"), no_restart=True)
    print("ended")
except ValueError:
    print("was gone")
"""
END_TRIES = 3
RAYS_PYTHON = (
    "raylet=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status 2>/dev/null); "
    "at=$(readlink -f /proc/$raylet/exe 2>/dev/null); at=${at%/ray/core/*}; python=python; "
    'if [ -d "$at/ray" ]; then python=$(readlink -f /proc/$PPID/exe); export PYTHONPATH=$at; fi; $python'
)
"""The interpreter with the cluster's own Ray: `python` may be another one, with another Ray or none. The
shell's parent is a worker of Ray, and the grandparent its raylet, a file of the package itself."""
JOB_ACTOR = "_ray_internal_job_actor_{submission_id}"
JOB_NAMESPACE = "SUPERVISOR_ACTOR_RAY_NAMESPACE"
"""Names of Ray 2.60: dashboard/modules/job/common.py. `stop` does nothing to a job that is PENDING."""


class RayHttp:
    """One cluster as seen through its dashboard. Implements `ops.ports.RayCluster`."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        environment: dict[str, str] | None = None,
        request_seconds: float = REQUEST_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.url = url.rstrip("/")
        self._retry_seconds = retry_seconds
        self._environment = environment or {}
        # a connection of its own for each call: a kept one that a proxy has cut fails the next call
        self._client = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=request_seconds,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def session(self) -> str:
        with self._in_rays_form("/api/version"):
            return str(self._json("GET", "/api/version")["session_name"])

    # --- jobs ---
    def submit(self, request: JobRequest) -> bool:
        body: dict[str, Any] = {
            "entrypoint": request.entrypoint,
            "submission_id": request.submission_id,
            "runtime_env": request.runtime_env,
            "metadata": request.metadata,
        }
        if request.cpus:
            body["entrypoint_num_cpus"] = request.cpus
        if request.resources:
            body["entrypoint_resources"] = request.resources
        try:
            self._json("POST", "/api/jobs/", json=body)
        except NotFoundError as error:
            raise ServerError(f"{error} (in answer to a submission)") from error
        except ClusterError as error:
            if "already exists" not in str(error):  # status 500 in 2.60, by the text only
                raise
            self._compare(request)
            return False
        return True

    def _compare(self, request: JobRequest) -> None:
        """An id that is taken must be ours: the same command."""
        there = self._json("GET", f"/api/jobs/{request.submission_id}")
        if there.get("entrypoint") != request.entrypoint:
            raise BadRequestError(
                f"submission id {request.submission_id} is taken by another command",
                hint="give the run another name",
            )

    def job(self, submission_id: str) -> JobView | None:
        path = f"/api/jobs/{submission_id}"
        try:
            with self._in_rays_form(path):
                return parse_job(self._json("GET", path))
        except NotFoundError:
            return None

    def jobs_of(self, run_url: str) -> tuple[tuple[str, JobStatus], ...]:
        """By the command, which names the run directory: another runs folder may have a run of that name."""
        place = f" {shlex.quote(run_url)} -- "
        with self._in_rays_form("/api/jobs/"):
            jobs = [
                job
                for job in self._json("GET", "/api/jobs/")
                if job.get("submission_id") and place in str(job.get("entrypoint"))
            ]
            return tuple((str(job["submission_id"]), JobStatus(job["status"])) for job in jobs)

    def log_tail(self, submission_id: str, lines: int = 400) -> str:
        """By the state API, which cuts at the node; the Jobs API would send the whole log each time."""
        job = self.job(submission_id)
        if job is None or not job.driver_node:
            return ""
        query = {
            "node_id": job.driver_node,
            "filename": f"job-driver-{submission_id}.log",
            "lines": str(lines),
            "filter_ansi_code": "true",
        }
        try:
            response = self._request("GET", "/api/v0/logs/file", params=query)
        except (ServerError, NotFoundError, BadRequestError):
            return ""  # the node that held the log is gone
        return response.content[-LOG_BYTES:].decode(errors="replace")

    def stop(self, submission_id: str) -> None:
        try:
            self._json("POST", f"/api/jobs/{submission_id}/stop")
        except NotFoundError:
            return

    def end_pending(self, submission_id: str) -> None:
        """By a small job on the head that kills the waiting job's actor; idempotent until one has failed."""
        code = END_PENDING.format(
            actor=JOB_ACTOR.format(submission_id=submission_id), namespace=JOB_NAMESPACE
        )
        for number in range(1, END_TRIES + 1):
            id = f"{submission_id}-end" if number == 1 else f"{submission_id}-end-{number}"
            earlier = self.job(id)
            if earlier is not None and earlier.status is JobStatus.FAILED:
                continue
            self.submit(
                JobRequest(
                    submission_id=id,
                    entrypoint=f"{RAYS_PYTHON} -c {shlex.quote(code)}",
                    runtime_env={"env_vars": self._environment},
                    metadata={"steadyray": "control"},
                )
            )
            return

    # --- packages ---
    def upload_package(self, name: str, data: bytes) -> str:
        path = f"/api/packages/gcs/{name}"
        try:
            self._request("GET", path)
        except NotFoundError:
            self._put(path, data)
        return f"gcs://{name}"

    def _put(self, path: str, data: bytes) -> None:
        try:
            self._request("PUT", path, content=data)
        except NotFoundError as error:
            raise ServerError(f"{error} (in answer to an upload)") from error

    # --- nodes ---
    def nodes(self) -> tuple[NodeView, ...]:
        answer = self._json("GET", "/api/v0/nodes", params={"detail": "1", "limit": "10000"})
        return tuple(parse_node(n) for n in answer["data"]["result"]["result"])

    def capacity(self, asked: dict[str, float]) -> Capacity:
        """Totals from the living nodes; what is free from the autoscaler's last report, if any."""
        total: dict[str, float] = {}
        for node in self.nodes():
            if node.alive:
                for name, amount in node.resources.items():
                    total[name] = total.get(name, 0.0) + amount
        status = self._json("GET", "/api/cluster_status")["data"].get("clusterStatus") or {}
        usage = (status.get("loadMetricsReport") or {}).get("usage") or {}
        free = {name: of - used for name, (used, of) in usage.items()}
        return Capacity(asked, total, {name: free.get(name, amount) for name, amount in total.items()})

    # --- HTTP ---
    @contextmanager
    def _in_rays_form(self, path: str) -> Iterator[None]:
        """Another server on the port may well answer with JSON, but not with Ray's fields."""
        try:
            yield
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(f"{self.url}{path} does not answer as Ray does: {error!r}") from error

    def _json(self, method: str, path: str, **kwargs: Any) -> Any:
        response = self._request(method, path, **kwargs)
        try:
            return response.json()
        except ValueError as error:
            raise ServerError(f"{self.url}{path} did not answer with JSON") from error

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One call, repeated while nothing or a passing error answers; all calls made here are idempotent."""
        attempts = Retrying(
            retry=retry_if_exception_type((UnreachableError, _Passing)),
            wait=wait_exponential_jitter(multiplier=0.1, max=2.0),
            stop=stop_after_delay(self._retry_seconds),
            reraise=True,
        )
        return attempts(self._once, method, path, **kwargs)

    def _once(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            response = self._client.request(method, path, **kwargs)
        except httpx.InvalidURL as error:
            raise BadRequestError(f"{self.url} is no address", hint="give http://HOST:PORT") from error
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"nothing answers at {self.url}{path}: {type(error).__name__}: {error}",
                hint="look whether the cluster is up: steadyray cluster status",
            ) from error
        raise_for(response, self.url)
        return response


class _Passing(ServerError):
    """A server error that is known to pass by itself."""


PASSING = ("No available agent", "Failed to get head node agent", "Agent info not found")
UNKNOWN_TO_RAY = "does not exist"
"""Ends every 404 of dashboard/modules/job/job_head.py. Any other 404 is not the head's: to take a proxy's
default page for a head without memory would start a second writer beside the first."""


def raise_for(response: httpx.Response, url: str) -> None:
    """The error that an answer's status stands for; nothing for a good one."""
    status, text = response.status_code, response.text if response.is_error else ""
    if status < 400:
        return
    where = f"{url}{response.request.url.path}"
    if status in (401, 403):
        raise AuthError(
            f"{where} refused the token (HTTP {status}); the cluster is up, the access is not",
            hint="use the token of this cluster: its token file, or RAY_AUTH_TOKEN_PATH",
        )
    why = headline(text)
    if status == 404 and UNKNOWN_TO_RAY in text:
        raise NotFoundError(f"{where}: {why}")
    if status == 404:
        raise ServerError(
            f"{where}: HTTP 404 that is not Ray's: {why or 'empty'}",
            hint="something else answers at this address: a proxy's default page, or another server",
        )
    if status in (502, 503, 504) or any(word in text for word in PASSING):
        raise _Passing(f"{where}: HTTP {status}: {why}")
    if status >= 500:
        raise ServerError(f"{where}: HTTP {status}: {why}")
    raise BadRequestError(f"{where}: HTTP {status}: {why}")


def headline(text: str) -> str:
    """Ray answers with whole tracebacks, nested and quoted; the line that names the error says enough."""
    lines = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line]
    return (named or lines or [""])[-1][:500]


def parse_job(data: dict[str, Any]) -> JobView:
    address = str(data.get("driver_agent_http_address") or "")
    return JobView(
        status=JobStatus(data["status"]),
        message=str(data.get("message") or ""),
        error_type=ray_releases.error_type(data),
        exit_code=ray_releases.exit_code(data),
        driver_node=str(data.get("driver_node_id") or ""),
        driver_host=address.removeprefix("http://").rpartition(":")[0],
    )


def parse_node(data: dict[str, Any]) -> NodeView:
    return NodeView(
        id=str(data["node_id"]),
        host=str(data.get("node_ip") or ""),
        alive=data.get("state") == "ALIVE",
        is_head=bool(data.get("is_head_node")),
        message=str(data.get("state_message") or ""),
        resources={k: float(v) for k, v in (data.get("resources_total") or {}).items()},
    )
