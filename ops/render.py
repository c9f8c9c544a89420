"""Render a profile into what a provider reads: today the launcher YAML, by the path every provider will use.

`steadyray cluster render` writes `cluster/rendered/`; CI runs it with `--check`. A running cluster's
autoscaler reads a live copy of the same text, which differs by nothing but its floors (`steadyray cluster
scale`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jinja2

from ops.profile import PROFILES, Group, Profile

CLUSTER_FOLDER = Path(__file__).resolve().parents[1] / "cluster"

WORKER_RESOURCE = "steadyray_worker"
"""A resource that every worker node has and the head has not: who asks for a sliver of it is kept off the
head."""

WORKER_UNITS = 1000
"""How much of it a node has: slivers of 0.001 and up for drivers, boards and spares."""

GROUP_LABEL = "steadyray.io/group"

BANNER = "# Made by `steadyray cluster render` from cluster/profiles/{name}.yaml. Do not edit: CI compares."

STATE_FOLDER = "$STEADYRAY_CLUSTER_DIR"
"""Stands in rendered text for the cluster's own folder, so that the text names no path of one machine."""


def profile_path(name: str) -> Path:
    """The file of a profile that ships with the repository."""
    return PROFILES / f"{name}.yaml"


def profile_names() -> list[str]:
    """Names of the profiles that ship with the repository."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def rendered_path(name: str) -> Path:
    return CLUSTER_FOLDER / "rendered" / f"{name}.yaml"


def launcher_yaml(profile: Profile, floors: Mapping[str, int] | None = None) -> str:
    """The launcher YAML of a profile; `floors` replaces the `min` of the groups it names."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(CLUSTER_FOLDER / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # YAML, not HTML
    )
    return environment.get_template("launcher.yaml.j2").render(
        banner=BANNER.format(name=profile.name),
        profile=profile,
        floors=floors or {},
        mib=1024 * 1024,
        node_resources=node_resources,
        group_label=GROUP_LABEL,
        head_environment=head_environment(profile),
        worker_environment=worker_environment(profile),
    )


def worker_environment(profile: Profile) -> dict[str, str]:
    """Variables of every Ray process of a node, head included."""
    detection = profile.failure_detection
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": f"{STATE_FOLDER}/token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_period_ms": str(detection.period_ms),
        "RAY_health_check_timeout_ms": str(detection.timeout_ms),
        "RAY_health_check_failure_threshold": str(detection.failure_threshold),
        "RAY_health_check_initial_delay_ms": str(detection.initial_delay_ms),
        "RAY_kill_worker_timeout_milliseconds": str(detection.kill_worker_ms),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(profile.reconnect_seconds),
        "RAY_JOB_STOP_WAIT_TIME_S": str(profile.job_stop_seconds),
        **profile.environment,
    }


def head_environment(profile: Profile) -> dict[str, str]:
    """Variables of the head: those of a node, persistence of the GCS, autoscaler v2."""
    monitor = {} if profile.head_memory_monitor else {"RAY_memory_monitor_refresh_ms": "0"}
    return {
        **worker_environment(profile),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": f"{STATE_FOLDER}/gcs",
        "RAY_enable_autoscaler_v2": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": str(profile.autoscaler_interval_seconds),
        **monitor,
    }


def node_resources(group: Group) -> dict[str, float]:
    """What one node of a group offers, in Ray's names."""
    mib = 1024 * 1024
    return {
        "CPU": group.cpus,
        **({"GPU": group.gpus} if group.gpus else {}),
        "memory": group.memory_mib * mib,
        "object_store_memory": group.object_store_mib * mib,
        WORKER_RESOURCE: WORKER_UNITS,
        **group.resources,
    }
