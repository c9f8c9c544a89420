"""How jobs end by themselves: the right class, one attempt, the same answer however often one asks."""

from __future__ import annotations

import base64
import shutil

import pytest

from conftest import Desk
from ops.adapters.clusters import LocalMaker

ENDINGS = [
    ("user-exception", "raise ValueError('my bug')", "UserError", 1, "ValueError: my bug"),
    ("exit-three", "import sys; sys.exit(3)", "UserError", 3, "exit code 3"),
    ("import-error", "import no_such_module_at_all", "BadEnvironment", 1, "no_such_module_at_all"),
    ("no-input", "open('no-such-file.csv')", "BadInput", 1, "no-such-file.csv"),
]


@pytest.mark.ray
@pytest.mark.parametrize(("name", "text", "kind", "code", "said"), ENDINGS, ids=[e[0] for e in ENDINGS])
def test_a_fault_of_the_script_ends_the_run_at_once_and_is_retried_by_nobody(
    desk: Desk, name: str, text: str, kind: str, code: int, said: str
) -> None:
    """B14, and B03: whoever attaches again gets the same answer."""
    script = desk.script("train.py", text)
    first = desk.run(*desk.job(name), script)
    again = desk.run("job", "run", name)
    result = desk.read(name, "result.json")
    assert (result["state"], result["failure_class"], result["exit_code"]) == ("Failed", kind, code)
    assert desk.attempts(name) == 1
    for seen in (first, again):
        assert seen.returncode == 1, seen.stderr
        assert f"driver exit code {code}" in seen.stderr
        assert said in seen.stderr


@pytest.mark.ray
def test_a_command_that_does_not_exist_is_a_matter_of_the_environment(desk: Desk) -> None:
    words = ("job", "run", "--cluster", desk.cluster, "--name", "no-command", "--", "no-such-command", "-x")
    assert desk.run(*words).returncode == 1
    result = desk.read("no-command", "result.json")
    assert (result["failure_class"], result["exit_code"]) == ("BadEnvironment", 127)


@pytest.mark.ray
def test_a_finished_run_is_refused_and_not_redone(desk: Desk) -> None:
    script = desk.script("train.py", "print('hello from the job')")
    assert desk.run(*desk.job("finished"), script).returncode == 0
    again = desk.run(*desk.job("finished"), script)
    assert again.returncode == 3
    assert "already finished" in again.stderr
    assert "hint" in again.stderr
    assert desk.attempts("finished") == 1
    assert desk.run("job", "run", "finished").returncode == 0, "attaching to it is fine"
    assert "hello from the job" in desk.run("job", "logs", "finished").stdout


@pytest.mark.ray
def test_a_run_whose_folder_was_deleted_does_not_get_the_end_of_the_old_one(desk: Desk) -> None:
    """The cluster still knows the old job under the same name; it must not answer for the new one."""
    assert desk.run(*desk.job("phoenix"), desk.script("train.py", "raise ValueError")).returncode == 1
    shutil.rmtree(desk.directory("phoenix"))
    assert desk.run(*desk.job("phoenix"), desk.script("train.py", "print('well')")).returncode == 0


@pytest.mark.ray
def test_the_driver_runs_on_a_worker_and_never_on_the_head(desk: Desk) -> None:
    script = desk.script("train.py", "print('x')")
    assert desk.run(*desk.job("placed"), script).returncode == 0
    node = desk.events("placed", "AttemptRunning")[0]["data"]["driver_node"]
    workers = {n.id for n in LocalMaker(desk.cluster).connect().nodes() if n.alive and not n.is_head}
    assert node in workers


@pytest.mark.ray
def test_a_secret_appears_in_no_file_of_the_run_and_in_no_output(desk: Desk) -> None:
    """B52 as well: the cluster's token is one of them."""
    secret = "xK-nobody-may-see-this-7731"
    token_file = desk.home / "clusters" / desk.cluster / "token"
    token = token_file.read_text().strip()
    desk.environment["MY_SETTING"] = secret
    text = (
        "import base64, os, pathlib\n"
        "value = os.environ['MY_SETTING']\n"
        "print('setting', value, 'url', 'https://u:pw12345@h/x?sig=abcdefg')\n"
        f"print('token', pathlib.Path({str(token_file)!r}).read_text())\n"
        "print('wrapped', value[:9] + '\\n' + value[9:])\n"
        "print('encoded', base64.b64encode(b'user:' + value.encode()).decode())\n"
        "raise RuntimeError('with ' + value)\n"
    )
    script = desk.script("train.py", text)
    seen = desk.run(*desk.job("secretive", "--secret-env", "MY_SETTING"), script)
    assert seen.returncode == 1
    output = seen.stdout + seen.stderr
    for command in ("explain", "logs", "status"):
        answer = desk.run("job", command, "secretive")
        output += answer.stdout + answer.stderr
    assert "setting [redacted]" in output
    files = [p for p in desk.directory("secretive").rglob("*") if p.is_file()]
    assert len(files) > 5
    in_base64 = base64.b64encode(b"user:" + secret.encode()).decode()[8:-4]
    for hidden in (secret, secret[9:], in_base64, token, "pw12345", "sig=abcdefg"):
        assert hidden not in output
        assert not [p for p in files if hidden.encode() in p.read_bytes() and "code/" not in str(p)]


def test_a_credential_in_the_command_is_refused_before_anything_is_stored(desk: Desk) -> None:
    seen = desk.run(*desk.job("leaky"), "train.py", "--data", "https://u:hunter22@host/x")
    assert seen.returncode == 2
    assert "hunter22" not in seen.stderr
    assert not (desk.directory("leaky") / "spec.json").exists()
