"""Which host's processes one sees: a home may lie on shared storage, or be mounted into a container.

There "no process of the cluster is here" says nothing about the cluster. Called by `local_cluster`, which
writes the identity of the maker's host into `cluster.json` and compares it before it judges or removes.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")


class Relation(StrEnum):
    """How a recorded host stands to this one."""

    HERE = "here"
    REBOOTED = "rebooted"
    """The same host, started anew: none of the processes of then can live."""
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Host:
    """`boot_id` and `pid_namespace` are empty where there is no Linux; then names alone tell hosts apart."""

    name: str
    boot_id: str = ""
    pid_namespace: int = 0

    def seen_from(self, here: Host) -> Relation:
        """One kernel and one namespace show the same processes, whatever the host is called by now."""
        if self.boot_id and self.boot_id == here.boot_id:
            return Relation.HERE if self.pid_namespace == here.pid_namespace else Relation.ELSEWHERE
        if self.name != here.name:
            return Relation.ELSEWHERE
        return Relation.REBOOTED if self.boot_id else Relation.HERE

    def words(self, here: Host) -> str:
        """Two containers of one machine may bear one name."""
        return self.name if self.name != here.name else f"{self.name}, process namespace {self.pid_namespace}"


def this_host() -> Host:
    try:
        return Host(socket.gethostname(), BOOT_ID.read_text().strip(), PID_NAMESPACE.stat().st_ino)
    except OSError:
        return Host(socket.gethostname())


def host_of(cluster: Mapping[str, Any]) -> Host:
    """The host that made a cluster; this one where an older version wrote none."""
    data = cluster.get("host")
    return Host(**data) if data else this_host()
