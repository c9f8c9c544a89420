"""Ends the jobs of a run whose directory was lost: nothing but the cluster knows of them any more."""

from __future__ import annotations

from ops.policy.model import JobStatus
from ops.ports import RayCluster


def end_jobs(cluster: RayCluster, run_url: str) -> tuple[str, ...]:
    """Submission ids of the jobs that were asked to end. Raises ClusterError."""
    ended = []
    for submission_id, status in cluster.jobs_of(run_url):
        if not status.ended:
            end = cluster.end_pending if status is JobStatus.PENDING else cluster.stop
            end(submission_id)
            ended.append(submission_id)
    return tuple(ended)
