"""A run whose directory is in a bucket, end to end on a real cluster: nothing of it is in a folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from s3_server import Bucket, s3

from conftest import Desk, wait_for

RECIPES = Path(__file__).parents[2] / "training_image/recipes"
RUN = "team/through-s3"


def record(bucket: Bucket, path: str) -> dict[str, Any]:
    found = bucket.objects.get(f"{RUN}/{path}")
    return json.loads(found[0]) if found else {}


def events(bucket: Bucket, kind: str) -> list[dict[str, Any]]:
    keys = sorted(key for key in bucket.objects if key.startswith(f"{RUN}/events/"))
    found = [json.loads(bucket.objects[key][0]) for key in keys]
    return sorted((e for e in found if e["kind"] == kind), key=lambda e: float(e["time"]))


@pytest.mark.ray
def test_a_killed_driver_resumes_from_the_bucket_and_no_record_has_the_credential(desk: Desk) -> None:
    with s3() as (bucket, environment):
        desk.environment.update(environment)
        shutil.copy(RECIPES / "digits.yaml", desk.folder)
        plain = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP")
        secret = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        watching = desk.start(
            *("job", "run", "--cluster", desk.cluster, "--name", "through-s3", "--storage", "s3://runs/team"),
            *(word for name in plain for word in ("--env", f"{name}={environment[name]}")),
            *(word for name in secret for word in ("--secret-env", name)),
            *("digits.yaml", "workers.min=1", "workers.max=1", "workers.spares=0", "epochs=3"),
            *("step_seconds=0.2", "checkpoints.every_steps=5"),
        )
        wait_for(lambda: events(bucket, "CheckpointSaved") or watching.poll() is not None, "a checkpoint")
        assert watching.poll() is None, watching.communicate()
        bucket.cut_puts = 2
        os.kill(int(record(bucket, "attempts/0001/started.json")["pid"]), signal.SIGKILL)
        out, err = watching.communicate(timeout=240)
        assert watching.returncode == 0, err
        assert record(bucket, "result.json")["state"] == "Succeeded"
        assert record(bucket, "spec.json")["storage"] == "s3://runs/team"
        leases = [key for key in bucket.objects if key.endswith("/lease.json")]
        assert len(leases) == 2
        loaded = events(bucket, "CheckpointLoaded")
        assert [e["attempt"] for e in loaded] == [2]
        assert loaded[0]["data"]["step"] >= 5
        last = record(bucket, "attempts/0002/progress.json")
        assert last["step"] == last["total_steps"]
        assert f"{RUN}/model.pt" in bucket.objects
        told = [out, err, *(content[0].decode(errors="replace") for content in bucket.objects.values())]
        assert not [text for text in told if environment["AWS_SECRET_ACCESS_KEY"] in text]
        status = json.loads(desk.run("job", "status", "through-s3", "-o", "json").stdout)
        assert (status["state"], status["directory"]) == ("Succeeded", f"s3://runs/{RUN}")
        assert desk.run("job", "predict", "through-s3", "-o", "json").returncode == 0
        assert not desk.directory("through-s3").exists(), "nothing of it is in a folder"


def test_a_bucket_without_conditional_creates_is_refused_before_anything_is_begun(tmp_path: Path) -> None:
    with s3() as (bucket, environment):
        bucket.ignores_conditions = True
        desk = Desk(tmp_path, tmp_path / "home", "nobody", environment=environment)
        answer = desk.run(
            *("job", "run", "--cluster", "nobody", "--storage", "s3://runs/team", "--", "python", "x.py")
        )
        assert answer.returncode == 1
        assert "s3://runs/team ignores exclusive creates" in answer.stderr
        assert bucket.objects == {}


def test_a_credential_in_the_url_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tmp_path / "home", "nobody")
    url = "s3://AKIAABCDEFGH:hunter2hunter2@bucket/runs"
    answer = desk.run("job", "run", "--storage", url, "--", "python", "x.py")
    assert answer.returncode == 2
    assert "AWS_SECRET_ACCESS_KEY" in answer.stderr
    assert "hunter2" not in answer.stderr + answer.stdout
