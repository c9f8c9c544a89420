"""What Ray before 2.52 says in words only, as the fields that later releases have.

Seen with 2.49.2: `error_type` and `driver_exit_code` of a job are always null there.
"""

from __future__ import annotations

import re
from typing import Any

ENTRYPOINT_FAILED = re.compile(r"Job entrypoint command failed with exit code (-?\d+)")
ERROR_TYPES = (
    (ENTRYPOINT_FAILED, "JOB_ENTRYPOINT_COMMAND_ERROR"),
    (
        re.compile(r"runtime_env setup failed|Failed to set up runtime environment"),
        "RUNTIME_ENV_SETUP_FAILURE",
    ),
    (re.compile(r"Job supervisor actor failed to start within"), "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"),
    (re.compile(r"cannot be scheduled anymore|is unschedulable"), "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE"),
    (
        re.compile(r"(?s)Unexpected error occurred: .*(?:actor died|actor \w+ is unavailable|was killed)"),
        "JOB_SUPERVISOR_ACTOR_DIED",
    ),
)


def error_type(job: dict[str, Any]) -> str:
    """Ray's own word for why a job failed; empty where there is none."""
    if told := job.get("error_type"):
        return str(told)
    if job.get("status") != "FAILED":
        return ""
    message = str(job.get("message") or "")
    return next((kind for pattern, kind in ERROR_TYPES if pattern.search(message)), "")


def exit_code(job: dict[str, Any]) -> int | None:
    """Of the driver; negative for a signal."""
    told = job.get("driver_exit_code")
    if told is None and (found := ENTRYPOINT_FAILED.match(str(job.get("message") or ""))):
        return int(found[1])
    return None if told is None else int(told)
