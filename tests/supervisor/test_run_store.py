"""One contract for all stores; the folder, the bucket, obstore's memory store and the fake must pass it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.store import MemoryStore as ObMemory
from s3_server import Bucket as Served
from s3_server import served_to
from steadyray.storage import Bucket

from ops.adapters.fakes import MemoryStore
from ops.adapters.run_store import Store, open_store, probe, run_names
from ops.errors import StoreError, UsageError
from ops.ports import RunStore

MAKERS: dict[str, Callable[[Path], RunStore]] = {
    "folder": lambda path: open_store(str(path), "run"),
    "bucket": lambda _: open_store("s3://runs/team", "run"),
    "obstore memory": lambda _: Store(Bucket("memory:///run", ObMemory())),
    "fake": lambda _: MemoryStore(),
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    yield from served_to(monkeypatch)


@pytest.fixture(params=sorted(MAKERS))
def store(request: pytest.FixtureRequest, tmp_path: Path, served: Served) -> RunStore:
    return MAKERS[request.param](tmp_path)


def test_what_is_put_is_got_and_a_missing_path_is_none(store: RunStore) -> None:
    store.put("a/b.json", b"1")
    store.put("a/b.json", b"22")
    assert store.get("a/b.json") == b"22"
    assert store.get("a/c.json") is None


def test_a_path_is_created_once_and_keeps_its_first_content(store: RunStore) -> None:
    assert store.create("attempts/0001/lease.json", b"first")
    assert not store.create("attempts/0001/lease.json", b"second")
    assert store.get("attempts/0001/lease.json") == b"first"


def test_a_list_has_the_paths_below_a_folder_with_their_sizes(store: RunStore) -> None:
    for path in ("a/1", "a/b/2", "ab/3"):
        store.put(path, path.encode())
    assert store.list("a") == {"a/1": 3, "a/b/2": 5}
    assert store.list() == {"a/1": 3, "a/b/2": 5, "ab/3": 4}
    assert store.list("nothing") == {}


def test_deleting_twice_is_no_error(store: RunStore) -> None:
    store.put("x", b"1")
    store.delete("x")
    store.delete("x")
    assert store.get("x") is None


def test_of_many_that_create_at_once_one_wins(store: RunStore) -> None:
    for round_ in range(20):
        with ThreadPoolExecutor(16) as pool:
            won = list(pool.map(lambda i, r=round_: store.create(f"race/{r}", str(i).encode()), range(16)))
        assert won.count(True) == 1
        assert store.get(f"race/{round_}") == str(won.index(True)).encode()


def test_a_storage_that_ignores_exclusive_creates_is_refused_by_name(served: Served) -> None:
    served.ignores_conditions = True
    with pytest.raises(StoreError, match=r"s3://runs/team.*two supervisors"):
        probe("s3://runs/team")


def test_a_credential_in_the_url_is_a_usage_error_that_does_not_repeat_it() -> None:
    for use in (probe, run_names, lambda url: open_store(url, "run")):
        with pytest.raises(UsageError) as caught:
            use("s3://AKIAABCDEF:hunter2hunter2@bucket/runs")
        assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        open_store(str(tmp_path / "file"), "run")
    assert caught.value.hint


@pytest.mark.parametrize("root", ["folder", "s3://runs/team", "s3://runs"])
def test_runs_are_listed_by_their_specs(tmp_path: Path, served: Served, root: str) -> None:
    root = str(tmp_path) if root == "folder" else root
    for name in ("b", "a"):
        open_store(root, name).put("spec.json", b"{}")
    open_store(root, "empty").put("stop.json", b"{}")
    assert run_names(root) == ["a", "b"]
