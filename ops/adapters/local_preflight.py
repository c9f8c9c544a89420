"""What must hold on this machine before a local cluster is started: each fault with what to do about it.

Called by `local_cluster.up` before anything is written or started.
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from pathlib import Path

import psutil

from ops.errors import ClusterError
from ops.profile import Profile

MIB = 1024 * 1024
HEAD_MIB = 600
"""What a head's own processes need (PSS, measured)."""
NODE_MIB = 180
"""What an idle worker node needs (PSS, measured)."""
SOCKET_PATH_LIMIT = 107
SOCKET_PATH_BELOW_TEMP = 80
"""`/sr-01234567/012345/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store` and its like."""


def check(profile: Profile, folder: Path) -> None:
    """Raise ClusterError with a fix for the first thing that would keep the cluster from starting."""
    _writable(folder.parent, "set STEADYRAY_HOME to a folder that you may write to")
    _writable(Path(tempfile.gettempdir()), "set TMPDIR to a folder that you may write to")
    _short_enough(tempfile.gettempdir())
    _port_free("gcs_port", profile.head.gcs_port, ("127.0.0.1", "0.0.0.0"))
    _port_free("dashboard_port", profile.head.dashboard_port, ("127.0.0.1",))
    _memory(profile)
    _shared_memory(profile)


def _writable(path: Path, hint: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ClusterError(f"cannot write to {path}: {error.strerror}", hint=hint) from error


def _short_enough(temp: str) -> None:
    if len(temp) + SOCKET_PATH_BELOW_TEMP > SOCKET_PATH_LIMIT:
        raise ClusterError(
            f"the temporary folder {temp} is too deep: its sockets would pass {SOCKET_PATH_LIMIT} characters",
            hint="set TMPDIR to a shorter one, such as TMPDIR=/tmp",
        )


def _port_free(key: str, port: int, hosts: tuple[str, ...]) -> None:
    if not port:
        return
    for host in hosts:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno == errno.EACCES:
                    raise ClusterError(
                        f"port {port} ({key}) needs more rights", hint="take one above 1023"
                    ) from error
                raise ClusterError(
                    f"port {port} ({key}) is taken{_by_whom(port)}",
                    hint="end it, or take free ports: steadyray cluster up --free-ports",
                ) from error


def _by_whom(port: int) -> str:
    try:
        for found in psutil.net_connections("tcp"):
            if found.laddr and found.laddr.port == port and found.status == psutil.CONN_LISTEN and found.pid:
                return f" by pid {found.pid} ({psutil.Process(found.pid).name()})"
    except psutil.Error:
        pass
    return ""


def _memory(profile: Profile) -> None:
    nodes = sum(group.min for group in profile.groups.values())
    needed = HEAD_MIB + NODE_MIB * max(1, nodes)
    available = psutil.virtual_memory().available // MIB
    if available < needed:
        raise ClusterError(
            f"too little memory: {available} MiB are available, head and first nodes need {needed} MiB",
            hint="end other programs, or lower `min` of the groups in the profile",
        )


def _shared_memory(profile: Profile) -> None:
    """Ray moves an object store that does not fit to the disk with no more than a warning."""
    try:
        stat = os.statvfs("/dev/shm")
    except FileNotFoundError:
        return  # not Linux: Ray keeps its object store elsewhere
    needed = profile.head.object_store_mib + max(group.object_store_mib for group in profile.groups.values())
    free = stat.f_bavail * stat.f_frsize // MIB
    if free < needed:
        raise ClusterError(
            f"too little shared memory: /dev/shm has {free} MiB free, head and one node need {needed} MiB",
            hint="lower object_store_mib in the profile, or give more (docker run --shm-size=2g)",
        )
