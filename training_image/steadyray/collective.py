"""Process groups that can be left at any moment.

A gloo collective that waits for a lost peer returns only after its time-out: a lower time-out set later, or
`destroy_process_group` in another rank, changes nothing for a rank that already waits (measured with torch
2.15). What does work is to shut down the group's own TCP sockets: the waiting collective of this rank and
those of its neighbours then fail at once with "Connection closed by peer". NCCL has an abort of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from steadyray.messages import Rendezvous

FORMING_TIMEOUT = timedelta(seconds=20)
"""Rendezvous takes 0.03 to 0.5 s here; the driver ends one that waits for a lost rank much earlier."""

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Only a last resort: hangs and lost ranks are found by the driver, which aborts the group."""

_NATIVE = re.compile(r"gloo/transport|ProcessGroup(Gloo|NCCL)|NCCL error|nccl(Remote|System)Error")
_DATA = os.path.join("torch", "utils", "data", "")
"""A DataLoader that timed out or lost a worker is the user's, and no peer."""
_LOST_PEER = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket|broken pipe|timed out", re.IGNORECASE
)


class GroupLeft(Exception):
    """Raised in a rank that was asked to leave its generation at a step boundary."""


class GroupFailed(Exception):
    """Forming the group or handing on the state failed; the cause is torch's or the system's error."""


@contextlib.contextmanager
def group_work() -> Iterator[None]:
    """What fails in here was the group; an error of disk or of the user's state must stay outside."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise GroupFailed(str(error)) from error


def open_store(node_ip: str) -> dist.TCPStore:
    """The store of one generation, in the process of its rank 0, on a free port."""
    return dist.TCPStore(node_ip, 0, is_master=True, wait_for_workers=False, timeout=FORMING_TIMEOUT)


class Group:
    """The default process group of one generation in this process."""

    def __init__(self, rendezvous: Rendezvous, node_ip: str, store: dist.TCPStore | None = None) -> None:
        self.rendezvous = rendezvous
        self._own_store = store
        self._node_ip = node_ip
        self._lock = threading.Lock()
        self._before = _sockets()
        self._peers: set[int] = set()
        self._aborted = False
        self._closed = False

    def form(self) -> None:
        """Meet the other ranks. Raises RuntimeError (or a subclass) when a peer does not come."""
        r = self.rendezvous
        if r.backend == "gloo":
            os.environ["GLOO_SOCKET_IFNAME"] = _interface(self._node_ip)
        store = self._own_store or dist.TCPStore(
            r.host, r.port, is_master=False, wait_for_workers=False, timeout=FORMING_TIMEOUT
        )
        dist.init_process_group(
            r.backend,
            store=dist.PrefixStore(str(r.generation), store),
            rank=r.rank,
            world_size=r.world_size,
            timeout=COLLECTIVE_TIMEOUT,
        )
        if r.backend == "gloo":
            self._learn_peers(store)

    def _learn_peers(self, store: dist.TCPStore) -> None:
        """Tell each other the listening ports, so that an abort finds the group's sockets and no others."""
        own = [s.port for s in _sockets() - self._before if s.listening]
        r = self.rendezvous
        prefix = dist.PrefixStore(f"ports/{r.generation}", store)
        prefix.set(str(r.rank), ",".join(map(str, own)))
        told = [prefix.get(str(rank)).decode() for rank in range(r.world_size)]
        self._peers = {int(port) for ports in told for port in ports.split(",") if port}

    def abort(self) -> None:
        """From another thread: make whatever collective this rank waits in fail now."""
        with self._lock:
            self._aborted = True
            if self._closed:
                return
            if self.rendezvous.backend == "nccl" and dist.is_initialized():
                dist.distributed_c10d._abort_process_group()
                return
            for s in self._own_sockets():
                _shut_down(s.fd)

    def _own_sockets(self) -> set[_Socket]:
        """The group's connections. While it forms the peers' ports are unknown: all new ones are taken for
        its own, and those to the store, which rank 0 has opened before the group began."""
        forming, store = not self._peers, {self.rendezvous.port}
        found = {s for s in _sockets() if not s.listening}
        new = found - self._before
        if forming:
            return new | {s for s in found if {s.port, s.remote_port} & store}
        return {s for s in new if {s.port, s.remote_port} & self._peers}

    @property
    def aborted(self) -> bool:
        return self._aborted

    def close(self) -> None:
        with self._lock:
            self._closed = True
        if dist.is_initialized():
            dist.destroy_process_group()
        self._own_store = None


def is_lost_peer(error: BaseException) -> bool:
    """Whether `error`, or one that it was raised from, is what a collective says when a peer is gone."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, GroupLeft | dist.DistError):
            return True
        if isinstance(seen, RuntimeError) and _says_lost_peer(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _says_lost_peer(error: RuntimeError) -> bool:
    """A native signature counts from anywhere, since `Work.wait` raises in the caller's own file."""
    text = str(error)
    return bool(_NATIVE.search(text) or (_LOST_PEER.search(text) and _from_torch(error)))


def _from_torch(error: RuntimeError) -> bool:
    """Errors of native collectives are plain RuntimeErrors; a user's own would end in the user's file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return f"{os.sep}torch{os.sep}" in file and _DATA not in file


@dataclass(frozen=True, slots=True)
class _Socket:
    fd: int
    port: int
    remote_port: int
    listening: bool


def _sockets() -> set[_Socket]:
    return {
        _Socket(c.fd, c.laddr.port, c.raddr.port if c.raddr else 0, c.status == psutil.CONN_LISTEN)
        for c in psutil.Process().net_connections("tcp")
        if c.fd != -1 and c.laddr
    }


def _shut_down(fd: int) -> None:
    # The fd belongs to native code and stays open: only a duplicate is closed here.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def _interface(ip: str) -> str:
    """Name of the network interface that has `ip`: gloo must not guess it from the host name."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == ip for a in addresses):
            return name
    return "lo" if ip.startswith("127.") else os.environ.get("GLOO_SOCKET_IFNAME", "")


def send_state(state: object, to: int) -> None:
    """Hand an object with tensors to one rank of the default group, tensors without a copy through disk."""
    dist.send_object_list([state], dst=to, device=_device())


def receive_state(source: int) -> object:
    received: list[object] = [None]
    dist.recv_object_list(received, src=source, device=_device())
    return received[0]


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
