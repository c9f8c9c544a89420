"""The keeper: a small daemon that starts a local cluster's head and starts it again when it has died.

KubeRay does this on Kubernetes; on one machine nobody else would. Run by `local_cluster.up` as
`python -m ops.adapters.local_keeper FOLDER`, in a session of its own. It must stay small (no Ray, no
pydantic: 12 MB), knows only files, and adopts a living head when it was itself killed and started again.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from ops.adapters.local_nodes import (
    CURRENT_CLUSTER,
    HEAD,
    ClusterFolder,
    NodeRecord,
    finish_start,
    node_address,
    node_environment,
    ray_start,
    write_json,
)
from ops.adapters.local_processes import ProcessId, end, marked
from ops.errors import OpsTimeoutError

logger = logging.getLogger("keeper")

LOOK_SECONDS = 0.2
"""Pause between two looks at four pids: cheap, and small against the 5 s that a head needs to start."""

START_SECONDS = 180.0
FIRST_TRIES = 2
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses after failed restarts in a row; nodes wait `reconnect_seconds` for their head."""

PARTS = ("gcs_server", "raylet", "dashboard.py", "monitor.py")
"""What makes a head, by a word of the command line. Ray restarts none of them."""


@dataclass
class Keeper:
    """One cluster's keeper; `parts` are the head's processes that must live."""

    folder: ClusterFolder
    cluster: dict[str, Any]
    parts: dict[str, ProcessId]
    restarts: int = 0

    @property
    def uuid(self) -> str:
        return str(self.cluster["uuid"])

    def run(self) -> None:
        self._report("starting")
        if not self._adopt():
            self._start_or_give_up()
        while True:
            time.sleep(LOOK_SECONDS)
            if dead := [name for name, process in self.parts.items() if not process.alive()]:
                logger.warning("head lost: %s gone", ", ".join(dead))
                self._restart()

    def _adopt(self) -> bool:
        """Take over a whole head that runs; anything less is ended by the next start."""
        heads = [record for record in self.folder.records() if record.is_head]
        if len(heads) != 1:
            return False
        self.parts = self._find_parts(heads[0].instance)
        whole = len(self.parts) == len(PARTS)
        if whole:
            logger.info("adopted head %s", heads[0].instance)
            self._report("running")
        return whole

    def _start_or_give_up(self) -> None:
        """The first start: `up` waits for it and tells its user, so a failure is tried again only once.

        Once, since on a busy machine Ray gives its agents up after 15 s, and the second start finds warm
        files.
        """
        for _ in range(FIRST_TRIES):
            failure = self._start_head()
            if not failure:
                self._report("running")
                return
            logger.error("%s", failure)
        self._report("failed", failure or "")
        sys.exit(1)

    def _restart(self) -> None:
        self.restarts += 1
        self._report("restarting")
        for attempt in range(sys.maxsize):
            failure = self._start_head()
            if not failure:
                self._report("running")
                return
            pause = BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
            logger.error("%s; next try in %g s", failure, pause)
            self._report("restarting", failure)
            time.sleep(pause)

    def _start_head(self) -> str | None:
        """End what is left of the old head, start a new one on the same ports; None or what went wrong."""
        try:
            return self._end_and_start()
        except OpsTimeoutError as error:
            return f"{error}: {error.hint}"

    def _end_and_start(self) -> str | None:
        self._end_heads()
        temp_dir = Path(self.cluster["temp_dir"]) / HEAD
        # `ray start --head` refuses while this file names a GCS that it believes to run.
        (temp_dir / CURRENT_CLUSTER).unlink(missing_ok=True)
        # A fresh instance id: autoscaler v2 asks for the end of the old head's instance.
        record = self.folder.save(
            NodeRecord(
                instance=f"{HEAD}-{secrets.token_hex(3)}",
                group=HEAD,
                address=node_address(self.uuid, 1),
                temp_dir=str(temp_dir),
                started=time.time(),
                tags={},
            )
        )
        environment = node_environment(self.folder, self.cluster, record, self.cluster["head_environment"])
        process = ray_start(record, self.cluster["head_arguments"], environment, self.folder.head_log)
        logger.info("starting head %s, pid %d", record.instance, process.pid)
        try:
            code = process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        self.parts = self._find_parts(record.instance)
        missing = [part for part in PARTS if part not in self.parts]
        if missing or code is None:
            self._end_heads()
            ending = "did not end" if code is None else f"ended with {code}"
            what = f"`ray start --head` {ending}, missing: {', '.join(missing) or 'nothing'}"
            return f"{what}; see {self.folder.head_log}"
        if code:
            # It gives up after 30 s, which a busy machine takes; what it started goes on starting.
            logger.warning("`ray start --head` ended with %s, but all parts live: going on", code)
        finish_start(record, self.cluster["gcs_address"])
        self.folder.save(replace(record, raylet=self.parts["raylet"]))
        logger.info("head %s runs", record.instance)
        return None

    def _end_heads(self) -> None:
        for record in self.folder.records():
            if record.is_head:
                count = end(partial(marked, self.uuid, record.instance), grace_seconds=1.0)
                logger.info("ended %d processes of head %s", count, record.instance)
                (self.folder.nodes / f"{record.instance}.json").unlink(missing_ok=True)

    def _find_parts(self, instance: str) -> dict[str, ProcessId]:
        parts: dict[str, ProcessId] = {}
        for process in marked(self.uuid, instance):
            try:
                command = process.cmdline()
            except psutil.NoSuchProcess:
                continue
            for part in PARTS:
                if any(Path(word).name == part for word in command[:6]):
                    parts.setdefault(part, ProcessId.of(process))
        return parts

    def _report(self, state: str, detail: str = "") -> None:
        me = ProcessId.of(psutil.Process())
        write_json(
            self.folder.keeper_file,
            {
                "state": state,
                "detail": detail,
                "restarts": self.restarts,
                "pid": me.pid,
                "created": me.created,
            },
        )


def main() -> None:
    folder = ClusterFolder(Path(sys.argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    logging.basicConfig(
        filename=folder.keeper_log, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        Keeper(folder, folder.cluster(), {}).run()
    except Exception:
        logger.exception("keeper ends by a fault of its own")
        raise


if __name__ == "__main__":
    main()
