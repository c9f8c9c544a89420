"""Failure rules about jobs, nodes, queues and clouds: texts of Ray 2.60, Kubernetes, Slurm and clouds."""

from __future__ import annotations

from steadyray.contract import FailureClass

from ops.policy.rule import Rule

F = FailureClass
LOG = ("log",)
BOTH = ("exception", "log")

JOB: tuple[Rule, ...] = (
    Rule(
        "NodePreempted",
        F.PREEMPTED,
        ("job", "exception", "log"),
        (
            r"node was preempted(?! by the cloud provider, or)",
            r"Training was interrupted by node preemption",
            r"Terminated due to preemption",
            r"PreemptionError",
        ),
        "The node was drained because it is about to go.",
        0.95,
        lasting=True,
    ),
    Rule(
        "RuntimeEnvironment",
        F.BAD_ENVIRONMENT,
        ("job", "exception", "log"),
        (
            r"RUNTIME_ENV_SETUP_FAILURE",
            r"RuntimeEnvSetupError",
            r"^runtime_env setup failed",
            r"^ray\._private\.runtime_env\.",
        ),
        "Ray could not set up the job's environment.",
        0.95,
    ),
    Rule(
        "JobStartTimeout",
        F.CAPACITY_MISSING,
        ("job", "log"),
        (
            r"JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
            r"ACTOR_UNSCHEDULABLE",
            r"Job supervisor actor failed to start within",
        ),
        "No node with the asked resources came in time.",
        0.8,
    ),
    Rule(
        "MemoryMonitorTookSupervisor",
        F.OUT_OF_MEMORY_HOST,
        ("job",),
        (r"JOB_SUPERVISOR_ACTOR_(?:UNKNOWN_FAILURE|DIED)(?s:.*)low on memory",),
        "Ray's memory monitor ended the job's supervisor because the node ran low on memory.",
        0.9,
    ),
    Rule(
        "DriverNodeDied",
        F.DRIVER_LOST,
        ("job", "log"),
        (
            r"JOB_SUPERVISOR_ACTOR_DIED(?s:.*)(?:node has died|node was terminated)",
            r"JOB_SUPERVISOR_ACTOR_DIED(?s:.*)(?:dead or unavailable|missed too many heartbeats)",
            r"Job supervisor actor died:.*(?:node has died|node was terminated)",
        ),
        "The node that ran the driver is gone.",
        0.95,
    ),
    Rule(
        "JobSupervisorDied",
        F.DRIVER_LOST,
        ("job", "log"),
        (r"JOB_SUPERVISOR_ACTOR_(?:DIED|UNKNOWN_FAILURE|START_FAILURE)", r"Job supervisor actor died"),
        "Ray's supervisor of the job died, and the driver with it.",
        0.85,
    ),
    Rule(
        "UnknownToHead",
        F.HEAD_LOST,
        ("api", "log"),
        (r"does not know the job", r"\b404\b.*\bJob \S+ does not exist"),
        "The head does not know the job: it lost its state.",
        0.9,
    ),
    Rule(
        "ClusterGone",
        F.HEAD_LOST,
        ("api",),
        (r"processes are gone",),
        "All processes of the cluster are gone.",
        1.0,
    ),
)

ENDED_ON_PURPOSE: tuple[Rule, ...] = (
    Rule(
        "AttemptSuperseded",
        F.HEAD_LOST,
        LOG,
        (r"attempt \d+ of run \S+ was already started by another process",),
        "A head that had forgotten this attempt started it a second time; the second start left at once.",
        0.9,
    ),
    Rule(
        "TimeLimit",
        F.DEADLINE_EXCEEDED,
        LOG,
        (
            r"DUE TO TIME LIMIT",
            r"was active longer than specified deadline|exceeded its deadline",
            r"time limit of [\d.]+ s passed",
        ),
        "The time that was given to the job has passed.",
        0.95,
        lasting=True,
    ),
    Rule(
        "SpotNotice",
        F.PREEMPTED,
        LOG,
        (
            r"instance-action.{0,40}\"action\": ?\"(?:terminate|stop|hibernate)\"",
            r"[Ss]pot (?:[Ii]nstance )?[Ii]nterruption (?:notice|warning)",
            r"instance/preempted\b.*\bTRUE\b",
            r"\"EventType\": ?\"(?:Preempt|Terminate)\"",
            r"instance (?:was|is being|will be) (?:preempted|reclaimed)",
        ),
        "The cloud announced that it takes the machine back.",
        0.9,
        lasting=True,
    ),
    Rule(
        "PreemptedByScheduler",
        F.PREEMPTED,
        LOG,
        (
            r"\bPreempted by (?:pod|a |another )",
            r"EvictedDueToPreempted|Preempted to accommodate a workload",
            r"PreemptionByScheduler|PreemptionNotice|[Ss]pot_?[Ii]nterrupted\b",
            r"AUTOSCALER_DRAIN_PREEMPTED|DRAIN_NODE_REASON_PREEMPTION",
            r"DUE TO PREEMPTION",
            r"imminent node shutdown",
        ),
        "The scheduler or the platform took the place away for other work.",
        0.9,
        lasting=True,
    ),
    Rule(
        "MaintenanceNotice",
        F.MAINTENANCE,
        LOG,
        (
            r"(?:TERMINATE|MIGRATE)_ON_HOST_MAINTENANCE",
            r"\b(?:instance-retirement|system-maintenance|system-reboot|instance-reboot)\b",
            r"\"EventType\": ?\"(?:Redeploy|Reboot|Freeze)\"",
        ),
        "The platform announced maintenance of the machine.",
        0.9,
        lasting=True,
    ),
    Rule(
        "NodeDrained",
        F.MAINTENANCE,
        LOG,
        (r"^node/\S+ (?:cordoned|drained)", r"\bevicting pod \S+"),
        "A person or a tool drained the node.",
        0.9,
        lasting=True,
    ),
)

HEAD: tuple[Rule, ...] = (
    Rule(
        "GcsLost",
        F.HEAD_LOST,
        ("log", "exception"),
        (
            r"Failed to connect to GCS (?:at address \S+ )?within",
            r"GCS may have been killed",
            r"lost connection to (?:the )?GCS",
            r"Failed to get cluster ID from GCS server",
            r"Could not find any running Ray instance",
        ),
        "The driver lost the head.",
        0.9,
    ),
)

NODES: tuple[Rule, ...] = (
    Rule(
        "NodeMarkedDead",
        F.NODE_LOST,
        LOG,
        (
            r"marked dead because the detector has missed too many heartbeats",
            r"\(raylet\) \S+: +Check failed: ",
            r"mistakenly been marked (?:as )?dead",
            r"status is now: NodeNotReady",
            r"NodeStatusUnknown|Kubelet stopped posting node status",
            r"DUE TO NODE FAILURE",
            r"Kernel panic - not syncing",
            r"node\.kubernetes\.io/(?:unreachable|not-ready)\b.*(?:[Ee]vict|[Dd]elet)",
        ),
        "A node went away under the training.",
        0.9,
    ),
)

WAITING: tuple[Rule, ...] = (
    Rule(
        "HeldByQueue",
        F.QUEUED,
        LOG,
        (
            r"couldn'{1,2}t assign flavors to pod set",
            r"queue resource quota insufficient",
            r"(?i:workload is (?:pending|waiting) in (?:cluster ?queue|queue))",
            r"QuotaReserved.{0,20}False",
        ),
        "A queue holds the job back.",
        0.9,
    ),
    Rule(
        "NoCapacity",
        F.CAPACITY_MISSING,
        BOTH,
        (
            r"\d+/\d+ nodes are available: .*(?:Insufficient|untolerated taint|didn't match)",
            r"No nodes are available that match all",
            r"InsufficientInstanceCapacity|InsufficientHostCapacity|MaxSpotInstanceCountExceeded",
            r"VcpuLimitExceeded|InstanceLimitExceeded",
            r"ZONE_RESOURCE_POOL_EXHAUSTED|QUOTA_EXCEEDED|Quota '\S+' exceeded",
            r"SkuNotAvailable|OverconstrainedAllocationRequest|\bAllocationFailed\b|OperationNotAllowed.*[Qq]uota",
            r"No available node types can fulfill resource request",
            r"forbidden: exceeded quota",
            r"The worker group startup timed out after",
            r"cannot be scheduled right now",
            r"InsufficientClusterResourcesError|ActorUnschedulableError|TaskUnschedulableError",
        ),
        "What the job asks for cannot be had now.",
        0.85,
    ),
    Rule(
        "InterfaceSilent",
        F.CONTROL_PLANE_BLIND,
        BOTH,
        (
            r"dial tcp \S+:(?:443|6443): ",
            r"Unable to connect to the server|^ssh: connect to host \S+ port \d+: ",
            r"etcdserver: (?:request timed out|leader changed)",
            r"port=8265\): Max retries exceeded",
            r"the server is currently unable to handle the request",
        ),
        "An interface of the cluster does not answer; this says nothing about the training.",
        0.7,
        symptom=True,
    ),
)

STOPPED: tuple[Rule, ...] = (
    Rule(
        "StoppedByPerson",
        F.CANCELLED,
        BOTH,
        (
            r"Job was intentionally stopped",
            r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ \*\*\*",
            r"^KeyboardInterrupt\b|Detected KeyboardInterrupt",
            r"TaskCancelledError",
        ),
        "Somebody stopped the job.",
        0.8,
    ),
)
