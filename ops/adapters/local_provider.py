"""Ray's node provider for one machine: a node is a set of local processes.

Loaded by Ray's autoscaler (`provider: {type: external}` in the launcher YAML) inside the monitor process on
the head. It dies with the head and is made anew with it, so all it knows stands in the files of
`local_nodes`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from ops.adapters.local_gpus import devices, share
from ops.adapters.local_nodes import (
    CLUSTER_DIR,
    START_LOG,
    ClusterFolder,
    FailedStart,
    NodeRecord,
    find_raylet,
    finish_start,
    node_address,
    node_environment,
    ray_start,
)
from ops.adapters.local_processes import ProcessId, end, marked

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""A `ray start` that has not returned by then is given up (3 s quiet; 12 s were seen on a loaded machine)."""


class LocalNodeProvider(NodeProvider):  # type: ignore[misc]  # Ray ships no types
    """Starts and ends nodes of one cluster; finds those that an earlier head started."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        # Two warnings a second on every reading of the launcher YAML, about keys that Ray itself puts in.
        logging.getLogger("ray.autoscaler._private.util").setLevel(logging.ERROR)
        self._folder = ClusterFolder(Path(os.environ[CLUSTER_DIR]))
        self._cluster = self._folder.cluster()
        self._uuid = str(self._cluster["uuid"])
        self._lock = threading.RLock()  # the autoscaler launches and lists from several threads
        self._starting: dict[str, subprocess.Popen[bytes]] = {}
        self._listed: set[str] = set()

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        with self._lock:
            records = [record for record in map(self._refreshed, self._folder.records()) if record]
            self._listed = {record.instance for record in records}
        return [r.instance for r in records if tag_filters.items() <= self._tags(r).items()]

    def is_running(self, node_id: str) -> bool:
        record = self._folder.record(node_id)
        return bool(record and record.raylet and record.raylet.alive())

    def is_terminated(self, node_id: str) -> bool:
        return self._folder.record(node_id) is None

    def node_tags(self, node_id: str) -> dict[str, str]:
        record = self._folder.record(node_id)
        return self._tags(record) if record else {}

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        with self._lock:
            if record := self._folder.record(node_id):
                self._folder.save(replace(record, tags={**record.tags, **tags}))

    def external_ip(self, node_id: str) -> str:
        return self.internal_ip(node_id)

    def internal_ip(self, node_id: str) -> str:
        record = self._folder.record(node_id)
        return record.address if record else ""

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        return self.create_node_with_resources_and_labels(node_config, tags, count, {}, {})

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> dict[str, Any]:
        with self._lock:
            return {
                record.instance: tags
                for record in (self._start(node_config, tags, resources, labels) for _ in range(count))
            }

    def terminate_node(self, node_id: str) -> None:
        """End a worker node. The head is the keeper's: Ray asks for an old head's end after each head
        restart."""
        record = self._folder.record(node_id)
        if record is None:
            return
        if record.is_head:
            logger.warning("asked to terminate head %s: refused", node_id)
            return
        with self._lock:
            self._starting.pop(node_id, None)
        self._end(record)

    def _start(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> NodeRecord:
        group = tags[TAG_RAY_USER_NODE_TYPE]
        short = secrets.token_hex(3)
        taken = [gpu for other in self._folder.records() for gpu in other.gpus]
        record = self._folder.save(
            NodeRecord(
                instance=f"{group}-{short}",
                group=group,
                address=self._free_address(),
                temp_dir=str(Path(self._cluster["temp_dir"]) / short),
                started=time.time(),
                tags=dict(tags),
                gpus=share(devices(os.environ), taken, int(resources.get("GPU", 0))),
            )
        )
        environment = node_environment(self._folder, self._cluster, record, node_config["environment"])
        arguments = [f"--address={self._cluster['gcs_address']}", *_resource_flags(resources)]
        if labels:
            arguments.append("--labels=" + ",".join(f"{key}={value}" for key, value in labels.items()))
        process = ray_start(record, arguments, environment, Path(record.temp_dir) / START_LOG)
        self._starting[record.instance] = process
        logger.info("starting %s at %s, pid %d", record.instance, record.address, process.pid)
        return self._folder.save(replace(record, starter=_identify(process)))

    def _free_address(self) -> str:
        used = {record.address for record in self._folder.records()}
        numbers = range(2, 255)
        return next(
            (a for n in numbers if (a := node_address(self._uuid, n)) not in used),
            node_address(self._uuid, 2),
        )

    def _refreshed(self, record: NodeRecord) -> NodeRecord | None:
        """Bring a record up to date; None, and nothing left of the node, when it has ended."""
        if record.is_head:
            return record
        if record.raylet is not None:
            return record if record.raylet.alive() else self._bury(record, "its raylet has exited")
        process = self._starting.get(record.instance)
        starting = process.poll() is None if process else bool(record.starter and record.starter.alive())
        if starting:
            late = time.time() - record.started > START_SECONDS
            return self._bury(record, "it did not start in time") if late else record
        self._starting.pop(record.instance, None)
        raylet = find_raylet(record, self._uuid)
        if raylet is None:
            return self._bury(record, "`ray start` failed")
        finish_start(record, self._cluster["gcs_address"])
        return self._folder.save(replace(record, raylet=raylet))

    def _bury(self, record: NodeRecord, why: str) -> NodeRecord | None:
        """Not before Ray has seen it once: for a node that it never saw it would wait ten minutes."""
        if record.instance not in self._listed:
            return record
        logger.warning("node %s is gone: %s", record.instance, why)
        if record.raylet is None:
            log = str(Path(record.temp_dir) / START_LOG)
            self._folder.save_failed_start(FailedStart(record.instance, record.group, why, log, time.time()))
        self._end(record)
        return None

    def _end(self, record: NodeRecord) -> None:
        end(lambda: marked(self._uuid, record.instance), grace_seconds=1.0)
        self._folder.forget(record)

    @staticmethod
    def _tags(record: NodeRecord) -> dict[str, str]:
        if not record.is_head:
            return record.tags
        return {
            TAG_RAY_NODE_KIND: NODE_KIND_HEAD,
            TAG_RAY_USER_NODE_TYPE: record.group,
            TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
        }


def _resource_flags(resources: dict[str, float]) -> list[str]:
    """`ray start` has a flag for some resources and one JSON for the rest.

    GPUs are told to all nodes: without a number each would offer all that the machine has.
    """
    flags = {
        "CPU": "num-cpus",
        "GPU": "num-gpus",
        "memory": "memory",
        "object_store_memory": "object-store-memory",
    }
    given = {"GPU": 0.0, **resources}
    named = [f"--{flags[key]}={int(value)}" for key, value in given.items() if key in flags]
    rest = {key: value for key, value in resources.items() if key not in flags}
    return [*named, f"--resources={json.dumps(rest)}"]


def _identify(process: subprocess.Popen[bytes]) -> ProcessId | None:
    try:
        return ProcessId.of(psutil.Process(process.pid))
    except psutil.NoSuchProcess:
        return None
