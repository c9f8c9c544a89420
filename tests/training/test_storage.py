"""One contract for a folder and a bucket, and a bucket with faults: nothing lost, nothing doubled."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from s3_server import Bucket as Served
from s3_server import served_to
from steadyray import storage
from steadyray.folder import Folder
from steadyray.storage import Bucket, Storage, StorageError, open_storage, probe

MIB = 2**20


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A bucket whose clients lose their patience within the time of a test."""
    monkeypatch.setattr(storage, "SMALL_SECONDS", 1.0)
    monkeypatch.setattr(storage, "RETRY_SECONDS", 6.0)
    yield from served_to(monkeypatch)


@pytest.fixture
def bucket(served: Served) -> Bucket:
    opened = open_storage("s3://runs/a/run")
    assert isinstance(opened, Bucket)
    return opened


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return open_storage(tmp_path)
    found: Bucket = request.getfixturevalue("bucket")
    return found


# --- the contract ------------------------------------------------------------------------------------
def test_what_is_put_is_got_and_a_missing_key_is_none(place: Storage) -> None:
    place.put("a/b.json", b"1")
    place.put("a/b.json", b"22")
    assert place.get("a/b.json") == b"22"
    assert place.get("a/c.json") is None


def test_of_twenty_that_claim_one_wins_and_its_content_stays(place: Storage) -> None:
    barrier = threading.Barrier(20)

    def claim(number: int) -> bool:
        barrier.wait()
        return place.create("attempts/0001/lease.json", f"{number}".encode())

    with ThreadPoolExecutor(20) as pool:
        won = list(pool.map(claim, range(20)))
    assert won.count(True) == 1
    assert place.get("attempts/0001/lease.json") == f"{won.index(True)}".encode()
    assert not place.create("attempts/0001/lease.json", f"{won.index(True)}".encode())


def test_a_list_has_the_keys_below_a_folder_with_their_sizes(place: Storage) -> None:
    for key in ("a/1", "a/b/2", "ab/3"):
        place.put(key, key.encode())
    assert place.list("a") == {"a/1": 3, "a/b/2": 5}
    assert place.list() == {"a/1": 3, "a/b/2": 5, "ab/3": 4}
    assert place.list("nothing") == {}


def test_large_files_go_in_and_out_whole(place: Storage) -> None:
    content = bytes(range(256)) * (20 * MIB // 256)
    with place.write_file("checkpoints/1/state.pt") as path:
        path.write_bytes(content)
    assert place.list("checkpoints") == {"checkpoints/1/state.pt": len(content)}
    with place.read_file("checkpoints/1/state.pt") as path:
        assert path.read_bytes() == content
    assert place.get("checkpoints/1/state.pt") == content
    assert place.create("code/zip", content)


def test_a_large_file_that_is_missing_is_a_missing_file(place: Storage) -> None:
    with pytest.raises(FileNotFoundError) as caught, place.read_file("checkpoints/1/state.pt") as path:
        path.read_bytes()
    assert Path(caught.value.filename).name == "state.pt"


def test_deleting_and_removing_twice_is_no_error(place: Storage) -> None:
    place.put("x/y", b"1")
    for _ in range(2):
        place.delete("x/y")
    place.put("x/y", b"1")
    for _ in range(2):
        place.remove("x")
    assert place.list() == {}


def test_it_reaches_other_processes(place: Storage) -> None:
    place.put("a", b"1")
    again = pickle.loads(pickle.dumps(place))
    assert (again.url, again.get("a")) == (place.url, b"1")


def test_both_pass_the_probe_and_leave_nothing_of_it(place: Storage) -> None:
    probe(place)
    assert place.list() == {}


# --- a bucket with faults ----------------------------------------------------------------------------
@pytest.mark.parametrize("fault", ["cut_puts", "fail_puts"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_claim_whose_answer_was_lost_is_known_again_as_ours(
    served: Served, bucket: Bucket, fault: str, times: int
) -> None:
    setattr(served, fault, times)
    assert bucket.create("attempts/0001/lease.json", b"ours")
    assert not bucket.create("attempts/0001/lease.json", b"ours")
    assert bucket.get("attempts/0001/lease.json") == b"ours"


def test_of_twenty_claims_whose_answers_are_lost_one_wins(served: Served, bucket: Bucket) -> None:
    served.cut_puts = 15
    with ThreadPoolExecutor(20) as pool:
        won = list(pool.map(lambda n: bucket.create("claim", f"{n}".encode()), range(20)))
    assert won.count(True) == 1
    assert bucket.get("claim") == f"{won.index(True)}".encode()


def test_a_storage_that_refuses_for_a_while_loses_nothing(served: Served, bucket: Bucket) -> None:
    served.refuse_until = time.monotonic() + 2
    assert bucket.create("a", b"1")
    served.refuse_until = time.monotonic() + 2
    bucket.put("b", b"2")
    served.refuse = 3
    assert bucket.list() == {"a": 1, "b": 1}
    served.refuse = 3
    assert bucket.get("a") == b"1"


def test_a_request_that_is_never_answered_is_given_up_and_sent_again(served: Served, bucket: Bucket) -> None:
    served.stall = 1
    began = time.monotonic()
    assert bucket.create("a", b"1")
    served.stall = 1
    assert bucket.get("a") == b"1"
    assert time.monotonic() - began < 8


def test_one_that_stays_away_is_an_error_in_bounded_time_that_names_it(
    served: Served, bucket: Bucket
) -> None:
    served.refuse_until = time.monotonic() + 60
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"s3://runs/a/run: spec\.json"):
        bucket.get("spec.json")
    assert time.monotonic() - began < 2 * storage.RETRY_SECONDS + 3


def test_nobody_there_is_an_error_too(monkeypatch: pytest.MonkeyPatch, bucket: Bucket) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageError):
        open_storage("s3://runs/x").get("spec.json")


def test_a_storage_that_ignores_exclusive_creates_is_refused_by_name(served: Served, bucket: Bucket) -> None:
    served.ignores_conditions = True
    with pytest.raises(StorageError, match="s3://runs/a/run ignores exclusive creates"):
        probe(bucket)


def test_a_slow_upload_is_within_its_time(served: Served, bucket: Bucket) -> None:
    served.delay = 0.3
    with bucket.write_file("state.pt") as path:
        path.write_bytes(b"x" * 17 * MIB)
    with bucket.read_file("state.pt") as path:
        assert path.stat().st_size == 17 * MIB


# --- addresses ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAABCDEFGH:hunter2hunter2@bucket/runs",
        "s3://bucket/runs?X-Amz-Signature=hunter2hunter2",
        "az://account/container/runs?sv=2024&sig=hunter2hunter2",
        "gs://hunter2hunter2@bucket/runs",
        "s3://bucket/runs#hunter2hunter2",
    ],
)
def test_a_credential_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="environment") as caught:
        open_storage(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host/runs", "s3:///runs", "http://host/runs"])
def test_what_is_no_storage_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no run storage"):
        open_storage(url)


def test_folders_are_named_by_path_or_url(tmp_path: Path) -> None:
    for name in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        opened = open_storage(name)
        assert isinstance(opened, Folder)
        assert opened.root == tmp_path


WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "obstore" else find(name, *more)
sys.modules["obstore"] = None
from steadyray.storage import open_storage
folder = open_storage(sys.argv[1])
assert folder.create("a", b"1") and folder.get("a") == b"1" and folder.list() == {"a": 1}
open_storage("s3://runs/a")
"""


def test_a_folder_needs_no_package_and_a_bucket_says_which(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "StorageError: s3://runs/a needs the packages obstore" in answer.stderr
    assert "pip install 'steadyray[bucket]'" in answer.stderr
