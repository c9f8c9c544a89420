"""One contract for all stores; the local folder, obstore's memory store and the fake must pass it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.store import MemoryStore as ObMemory

from ops.adapters.fakes import MemoryStore
from ops.adapters.run_store import ObStore, open_store, probe, run_names
from ops.errors import StoreError
from ops.ports import RunStore

MAKERS: dict[str, Callable[[Path], RunStore]] = {
    "folder": lambda path: open_store(str(path), "run"),
    "obstore memory": lambda _: ObStore(ObMemory(), "memory"),
    "fake": lambda _: MemoryStore(),
}


@pytest.fixture(params=sorted(MAKERS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
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


class Careless(ObStore):
    """A storage that ignores the condition of an exclusive create, as some S3 look-alikes do."""

    def create(self, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True


def test_a_storage_that_ignores_exclusive_creates_is_refused() -> None:
    with pytest.raises(StoreError, match="two supervisors"):
        probe(Careless(ObMemory(), "s3://careless/run"))


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        open_store(str(tmp_path / "file"), "run")
    assert caught.value.hint


def test_runs_are_listed_by_their_specs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        open_store(str(tmp_path), name).put("spec.json", b"{}")
    open_store(str(tmp_path), "empty")
    assert run_names(str(tmp_path)) == ["a", "b"]
