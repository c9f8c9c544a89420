"""Bad networks and half-dead dashboards before a healthy cluster: one job, and its true end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from proxy import Fault, Proxy, any_request, jobs_api, packages, submission

from conftest import CHECKPOINTING, Desk, driver_of, wait_for
from ops.adapters.clusters import LocalMaker
from ops.adapters.local_cluster import ClusterConnection
from ops.adapters.ray_http import RayHttp
from ops.errors import AuthError, ServerError, UnreachableError
from ops.ports import JobRequest


@pytest.fixture
def proxy(shared_cluster: ClusterConnection) -> Iterator[Proxy]:
    with Proxy(shared_cluster.dashboard_url) as made:
        yield made


@pytest.fixture
def remote(desk: Desk, proxy: Proxy, shared_cluster: ClusterConnection) -> Desk:
    """A desk that knows the cluster by the proxy's address and a token file only."""
    desk.cluster = proxy.url
    desk.environment |= {"RAY_AUTH_TOKEN_PATH": str(shared_cluster.token_file)}
    return desk


def python(shared_cluster: ClusterConnection) -> str:
    """The cluster's own interpreter; a cluster known by address may have another as `python`."""
    return LocalMaker(shared_cluster.name).environment()["PATH"].split(":")[0] + "/python"


def words(desk: Desk, run: str, interpreter: str, *options: str) -> tuple[str, ...]:
    return (*desk.job(run, *options)[:-1], interpreter)


@pytest.mark.ray
def test_slow_answers_are_no_failures_and_make_one_job(
    remote: Desk, proxy: Proxy, shared_cluster: ClusterConnection
) -> None:
    """B26: 0.2 to 2 s of latency."""
    proxy.faults.append(Fault(submission, delay_seconds=2.0))
    proxy.faults.append(Fault(any_request, delay_seconds=0.2))
    script = remote.script("train.py", "print('x')")
    seen = remote.run(*words(remote, "slow-net", python(shared_cluster)), script)
    assert seen.returncode == 0, seen.stderr
    assert remote.attempts("slow-net") == 1


@pytest.mark.ray
def test_a_submission_whose_answer_is_lost_is_repeated_under_the_same_id(
    remote: Desk, proxy: Proxy, shared_cluster: ClusterConnection
) -> None:
    """The first POST is carried out and its answer is cut; the second is told `already exists` with 500."""
    proxy.faults.append(Fault(submission, cut_after_bytes=3, times=1))
    script = remote.script("train.py", "print('x')")
    seen = remote.run(*words(remote, "cut-submit", python(shared_cluster)), script)
    assert seen.returncode == 0, seen.stderr
    assert proxy.seen.count("POST /api/jobs/") == 2
    assert remote.attempts("cut-submit") == 1


@pytest.mark.ray
def test_a_submission_without_an_agent_is_repeated_until_there_is_one(
    remote: Desk, proxy: Proxy, shared_cluster: ClusterConnection
) -> None:
    """B27: 500 `No available agent` and 503, longer than one call repeats itself."""
    text = "No available agent to submit job, please try again later."
    proxy.faults.append(Fault(submission, status=500, text=text, times=8))
    proxy.faults.append(Fault(submission, status=503, text="Service Unavailable", times=3))
    script = remote.script("train.py", "print('x')")
    seen = remote.run(*words(remote, "no-agent", python(shared_cluster)), script)
    assert seen.returncode == 0, seen.stderr
    assert proxy.seen.count("POST /api/jobs/") >= 12
    assert remote.attempts("no-agent") == 1


@pytest.mark.ray
def test_connections_that_are_cut_all_the_time_do_not_change_the_end(
    remote: Desk, proxy: Proxy, shared_cluster: ClusterConnection
) -> None:
    """B25, and B02: a log that ends early or cleanly is never read as the end of the job."""
    turn = iter(range(10**9))
    proxy.faults.append(Fault(lambda m, p: next(turn) % 3 == 0, cut_after_bytes=0))
    proxy.faults.append(Fault(lambda m, p: "/logs" in p, cut_after_bytes=2))
    text = "import time\nfor i in range(40): print(i, flush=True); time.sleep(0.1)\nraise SystemExit(3)\n"
    script = remote.script("train.py", text)
    seen = remote.run(*words(remote, "cut-net", python(shared_cluster)), script)
    assert seen.returncode == 1, seen.stderr
    assert remote.read("cut-net", "result.json")["exit_code"] == 3
    assert remote.attempts("cut-net") == 1


@pytest.mark.ray
def test_a_jobs_api_that_is_silent_is_a_partial_outage_and_leads_to_nothing(
    remote: Desk, proxy: Proxy, checkpointing: str, shared_cluster: ClusterConnection
) -> None:
    """B50: `/api/version` answers, `/api/jobs/` does not."""
    gate = remote.directory("partial") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("3")
    watching = remote.start(
        *words(remote, "partial", python(shared_cluster), "--patience", "1"), checkpointing, "5"
    )
    driver_of(remote, "partial", 1)
    wait_for(lambda: remote.read("partial", "attempts/0001/progress.json").get("step") == 3, "step 3")
    proxy.faults.append(Fault(jobs_api, cut_after_bytes=0))
    waiting = wait_for(lambda: remote.events("partial", "Waiting"), "the supervisor waits")
    assert "partial outage" in waiting[-1]["data"]["message"]
    proxy.faults.clear()
    gate.write_text("99")
    _, err = watching.communicate(timeout=120)
    assert watching.returncode == 0, err
    assert remote.attempts("partial") == 1
    assert remote.events("partial", "ActionTaken") == []


@pytest.mark.ray
@pytest.mark.parametrize("token", ["", "wrong-token-wrong-token"], ids=["none", "wrong"])
def test_a_bad_token_is_said_to_be_one_with_its_own_exit_code(remote: Desk, token: str) -> None:
    """B52: it does not look like an outage, and the token is not printed."""
    remote.environment = {"RAY_AUTH_TOKEN": token, "RAY_AUTH_TOKEN_PATH": ""}
    script = remote.script("train.py", "print('x')")
    seen = remote.run(*remote.job(f"auth-{len(token)}"), script)
    assert seen.returncode == 5, seen.stderr
    assert "refused the token" in seen.stderr
    assert not token or token not in seen.stderr + seen.stdout


def test_nobody_there_is_unreachable_and_a_broken_server_is_not(proxy: Proxy) -> None:
    with pytest.raises(UnreachableError):
        RayHttp("http://127.0.0.1:9", retry_seconds=0.0).session()
    proxy.faults.append(Fault(any_request, status=500, text="boom"))
    with pytest.raises(ServerError, match="boom"):
        RayHttp(proxy.url, retry_seconds=0.0).session()


@pytest.mark.ray
def test_a_wrong_token_raises_the_error_that_says_so(proxy: Proxy) -> None:
    with pytest.raises(AuthError):
        RayHttp(proxy.url, "nonsense", retry_seconds=0.0).session()


@pytest.mark.ray
def test_a_404_that_is_not_rays_is_an_outage_and_never_a_second_writer(
    remote: Desk, proxy: Proxy, shared_cluster: ClusterConnection
) -> None:
    """An ingress without its backend answers 404 in its own words, at first to uploads, then to all."""
    foreign = "default backend - 404"
    proxy.faults += [
        Fault(submission, status=404, text=foreign, times=1),
        Fault(packages, status=404, text=foreign, times=1),
    ]
    gate = remote.directory("ingress") / "gate"
    gate.parent.mkdir(parents=True)
    gate.write_text("3")
    script = remote.script("train.py", CHECKPOINTING)
    watching = remote.start(*words(remote, "ingress", python(shared_cluster)), script, "6")
    wait_for(lambda: remote.read("ingress", "attempts/0001/progress.json").get("step") == 3, "step 3")
    proxy.faults.append(Fault(any_request, status=404, text=foreign))
    wait_for(lambda: remote.events("ingress", "Waiting"), "the supervisor waits")
    before = len(proxy.seen)
    wait_for(lambda: len(proxy.seen) > before + 12, "longer than a job may be unknown")
    assert remote.attempts("ingress") == 1
    proxy.faults.clear()
    gate.write_text("99")
    _, err = watching.communicate(timeout=120)
    assert watching.returncode == 0, err
    assert remote.attempts("ingress") == 1
    assert remote.events("ingress", "ActionTaken") == []


CALLS: dict[str, Callable[[RayHttp], object]] = {
    "session": lambda ray: ray.session(),
    "job": lambda ray: ray.job("digits-1"),
    "stop": lambda ray: ray.stop("digits-1"),
    "submit": lambda ray: ray.submit(JobRequest("digits-1", "true")),
    "upload": lambda ray: ray.upload_package("_ray_pkg_0.zip", b"x"),
    "nodes": lambda ray: ray.nodes(),
}
FOREIGN = {
    "ingress": (404, "default backend - 404"),
    "empty": (404, ""),
    "json": (404, '{"detail":"Not Found"}'),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answer", FOREIGN)
def test_no_call_takes_another_servers_404_for_rays(call: str, answer: str) -> None:
    status, text = FOREIGN[answer]
    fault = Fault(any_request, status=status, text=text)
    with Proxy("http://127.0.0.1:9", [fault]) as other, pytest.raises(ServerError, match="not Ray's"):
        CALLS[call](RayHttp(other.url, retry_seconds=0.0))


@pytest.mark.parametrize("call", ["session", "job"])
def test_another_servers_good_answer_is_no_news_of_a_job(call: str) -> None:
    fault = Fault(any_request, status=200, text='{"hello": "world"}')
    with Proxy("http://127.0.0.1:9", [fault]) as other, pytest.raises(ServerError, match="as Ray does"):
        CALLS[call](RayHttp(other.url, retry_seconds=0.0))


def test_rays_own_404_is_a_job_it_does_not_know_and_an_upload_it_lacks_is_no_crash() -> None:
    text = "Job digits-1 does not exist"
    with Proxy("http://127.0.0.1:9", [Fault(any_request, status=404, text=text)]) as ray:
        client = RayHttp(ray.url, retry_seconds=0.0)
        assert client.job("digits-1") is None
        for call in ("submit", "upload"):
            with pytest.raises(ServerError):
                CALLS[call](client)
