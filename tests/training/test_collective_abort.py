"""Leaving a gloo group in real processes: who waits is freed at once, and no other socket is touched."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from steadyray.collective import Group, GroupLeft, Rendezvous, is_lost_peer, open_store

IP = "127.0.0.1"
AT_ONCE = 5.0
"""Seconds, on a machine that does much else; measured are 0.01, and the time-out would be 30 minutes."""


def rank_main(rank: int, world: int, pipe: Connection) -> None:
    """One rank that does what the test tells it: its main thread answers, as a member's other threads do."""
    store = open_store(IP) if rank == 0 else None
    pipe.send(store.port if store else 0)
    port = pipe.recv()
    before = Pair()
    group = Group(Rendezvous(1, rank, world, IP, port), IP, store)
    pairs = [before]
    work = {
        "form": group.form,
        "reduce": lambda: dist.all_reduce(torch.ones(4)),
        "open": lambda: pairs.append(Pair()),
        "check": lambda: [pair.check() for pair in pairs],
        "abort": group.abort,
        "close": group.close,
    }
    while (order := pipe.recv()) != "end":
        if order in ("form", "reduce"):
            threading.Thread(target=answer, args=(work[order], pipe, order), daemon=True).start()
        else:
            answer(work[order], pipe, order)


def answer(work: Callable[[], object], pipe: Connection, order: str) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  whatever it is, the test judges it
        pipe.send((order, is_lost_peer(error), f"{type(error).__name__}: {error}"))
    else:
        pipe.send((order, None, ""))


class Pair:
    """A TCP connection of the user's own within the process, both ends."""

    def __init__(self) -> None:
        with socket.create_server((IP, 0)) as server:
            self.near = socket.create_connection(server.getsockname())
            self.far, _ = server.accept()

    def check(self) -> None:
        self.near.sendall(b"hello")
        assert self.far.recv(5) == b"hello"


class Ranks:
    def __init__(self, world: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["steadyray.collective"])  # torch is loaded once
        self.pipes, self.processes = [], []
        for rank in range(world):
            near, far = context.Pipe()
            process = context.Process(target=rank_main, args=(rank, world, far), daemon=True)
            process.start()
            self.pipes.append(near)
            self.processes.append(process)
        port = max(pipe.recv() for pipe in self.pipes)
        for pipe in self.pipes:
            pipe.send(port)

    def tell(self, order: str, *ranks: int) -> None:
        for rank in ranks:
            self.pipes[rank].send(order)

    def hear(self, rank: int, order: str, timeout: float = 60.0) -> tuple[bool | None, str]:
        """What came of the order: (None, "") if it succeeded, else whether a peer was lost, and the text."""
        assert self.pipes[rank].poll(timeout), f"rank {rank} gave no word about {order}"
        what, lost, text = self.pipes[rank].recv()
        assert what == order, (what, text)
        return lost, text

    def do(self, order: str, *ranks: int) -> None:
        self.tell(order, *ranks)
        assert [self.hear(rank, order) for rank in ranks] == [(None, "")] * len(ranks)

    def waits(self, rank: int) -> bool:
        return not self.pipes[rank].poll(0.3)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


@pytest.fixture
def make_ranks() -> Iterator[Callable[[int], Ranks]]:
    made: list[Ranks] = []

    def make(world: int) -> Ranks:
        made.append(Ranks(world))
        return made[-1]

    yield make
    for ranks in made:
        ranks.end()


def test_ranks_that_wait_for_one_that_never_comes_to_the_collective_are_freed_at_once(
    make_ranks: Callable[[int], Ranks],
) -> None:
    ranks = make_ranks(4)
    ranks.do("form", 0, 1, 2, 3)
    ranks.do("open", 0, 1, 2)
    ranks.tell("reduce", 0, 1, 2)
    assert ranks.waits(1), "rank 3 has not come, so nobody gets through"
    began = time.monotonic()
    for rank in (0, 1, 2):
        ranks.tell("abort", rank)
        answers = sorted([ranks.pipes[rank].recv(), ranks.pipes[rank].recv()])
        assert answers[0] == ("abort", None, "")
        assert answers[1][:2] == ("reduce", True), answers
    assert time.monotonic() - began < AT_ONCE
    ranks.do("check", 0, 1, 2)
    ranks.do("close", 0, 1, 2)


def test_ranks_that_wait_for_one_that_never_comes_to_the_rendezvous_are_freed_at_once(
    make_ranks: Callable[[int], Ranks],
) -> None:
    ranks = make_ranks(4)
    ranks.tell("form", 0, 1, 2)
    assert ranks.waits(0)
    began = time.monotonic()
    ranks.tell("abort", 0, 1, 2)
    for rank in (0, 1, 2):
        answers = sorted([ranks.pipes[rank].recv(), ranks.pipes[rank].recv()])
        assert answers[1][:2] == ("form", True), answers
    assert time.monotonic() - began < AT_ONCE
    ranks.do("check", 0, 1, 2)


def test_a_killed_rank_frees_those_that_wait_for_it_without_an_abort(
    make_ranks: Callable[[int], Ranks],
) -> None:
    ranks = make_ranks(2)
    ranks.do("form", 0, 1)
    ranks.tell("reduce", 0)
    assert ranks.waits(0)
    ranks.processes[1].kill()
    lost, text = ranks.hear(0, "reduce")
    assert lost, text


def test_an_abort_after_the_group_was_closed_touches_nothing(make_ranks: Callable[[int], Ranks]) -> None:
    ranks = make_ranks(2)
    ranks.do("form", 0, 1)
    ranks.do("close", 0, 1)
    ranks.do("open", 0, 1)
    ranks.do("abort", 0, 1)
    ranks.do("check", 0, 1)


# --- what counts as a lost peer ----------------------------------------------------------------------
def raised(work: Callable[[], Any]) -> BaseException:
    try:
        work()
    except BaseException as error:  # noqa: BLE001  SystemExit is one of them
        return error
    raise AssertionError("nothing was raised")


def users_own(message: str, kind: type[BaseException] = RuntimeError) -> Callable[[], Any]:
    def fail() -> None:
        raise kind(message)

    return fail


@pytest.mark.parametrize(
    "work",
    [
        users_own("cannot open socket to the data server"),
        users_own("gloo: Connection closed by peer"),
        users_own("Connection reset by peer", ConnectionError),
        users_own("timed out", TimeoutError),
        lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        lambda: torch.ones(2).reshape(3),
        lambda: dist.all_reduce(torch.ones(1)),
        users_own("3", SystemExit),
    ],
    ids=["socket", "gloo", "connection", "time-out", "shapes", "reshape", "no group", "exit"],
)
def test_an_error_of_the_users_code_is_no_lost_peer_whatever_it_says(work: Callable[[], Any]) -> None:
    assert not is_lost_peer(raised(work))


def test_a_data_loader_that_timed_out_is_no_lost_peer() -> None:
    class Slow(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            time.sleep(60)
            return index

    loader = torch.utils.data.DataLoader(Slow(), num_workers=1, timeout=1)
    error = raised(lambda: next(iter(loader)))
    assert "timed out" in str(error)
    assert not is_lost_peer(error)


def test_a_users_error_about_a_lost_peer_is_still_a_lost_peer() -> None:
    def fail() -> None:
        try:
            raise GroupLeft("asked to leave")
        except GroupLeft as error:
            raise ValueError("my training step failed") from error

    assert is_lost_peer(raised(fail))


def test_a_rank_that_was_asked_to_leave_has_lost_its_peers() -> None:
    assert is_lost_peer(GroupLeft("asked to leave generation 3"))


def test_a_native_error_that_wait_raises_in_the_callers_file_is_a_lost_peer() -> None:
    def wait() -> None:
        raise RuntimeError("[/src/gloo/gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer")

    assert is_lost_peer(raised(wait))
