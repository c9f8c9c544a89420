"""Failure rules about machines: devices, memory, network, collectives, storage. Kernel, NVIDIA, NCCL, torch.

Xid codes follow NVIDIA's catalog: those that need a reset or a reboot are faults of the machine, those that
an application restart cures are crashes, and pure information (63, 92, 93) has no rule.
"""

from __future__ import annotations

from steadyray.contract import FailureClass

from ops.policy.rule import Rule
from ops.policy.treatments import NodeAction

F = FailureClass
LOG = ("log",)
BOTH = ("exception", "log")
XID = r"NVRM: Xid \([^)]*\): "

HARDWARE: tuple[Rule, ...] = (
    Rule(
        "EccError",
        F.HARDWARE_FAULT,
        ("log", "exception"),
        (
            r"uncorrectable (?:NVLink|ECC) error",
            XID + r"(?:48|64|95|140|156|157)\b",
            r"row remap(?:ping|per)?\b.*\bfail",
        ),
        "The GPU reports a fault of its memory; this is a matter of the machine.",
        0.95,
        lasting=True,
    ),
    Rule(
        "DeviceFailed",
        F.HARDWARE_FAULT,
        ("log", "exception"),
        (
            XID + r"(?:46|54|62|74|79|109|110|119|120|136|14[2-9]|150|155|158|167)\b",
            r"fallen off the bus|GPU is lost",
            r"Unable to determine the device handle for",
            r"Error 802: system not yet initialized",
            r"SXid \(\S+\): \d+, Fatal|NVSwitch fatal error",
            r"(?:HW Slowdown|thermal violation|power brake).{0,60}(?:temperature|active|reached)",
        ),
        "A device of the machine failed.",
        0.95,
        lasting=True,
    ),
    Rule(
        "MachineFailed",
        F.HARDWARE_FAULT,
        LOG,
        (
            r"EDAC MC\d+: \d+ UE",
            r"\[Hardware Error\].*(?:Uncorrected|Fatal|Machine check events logged)",
            r"AER: Uncorrected \(Fatal\)|PCIe Bus Error: severity=Uncorrected \(Fatal\)",
            r"nvme\d* ?\S*: Device not ready|(?:blk_update_request|critical medium): ?(?:I/O )?error",
            r"EXT4-fs error|XFS .*metadata I/O error|Remounting filesystem read-only",
            r"XidCriticalError|GpuXidCritical|GpuUnhealthy is now: True|NVSentinel.*fatal",
        ),
        "The machine reports a fault of processor, memory, bus or disk.",
        0.9,
        lasting=True,
    ),
    Rule(
        "EccContained",
        F.HARDWARE_FAULT,
        LOG,
        (XID + r"94\b",),
        "The GPU contained a memory error; the process cannot go on, the device can.",
        0.8,
        lasting=True,
        node_action=NodeAction.SUSPECT,
    ),
)

MEMORY: tuple[Rule, ...] = (
    Rule(
        "DeviceMemory",
        F.OUT_OF_MEMORY_DEVICE,
        BOTH,
        (
            r"CUDA out of memory",
            r"HIP out of memory|XPU out of memory",
            r"CUDA error: out of memory|Cuda failure (?:2 )?'out of memory'",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"Failed to CUDA calloc",
            r"No available memory for the cache blocks",
        ),
        "The GPU's memory is too small for the model and batch.",
        0.95,
    ),
    Rule(
        "KernelOomKill",
        F.OUT_OF_MEMORY_HOST,
        LOG,
        (
            r"[Oo]ut of memory: Kill(?:ed)? process",
            r"invoked oom-killer|oom-kill:constraint=",
            r"\bSystemOOM\b",
            r"oom_kill event|task \d+: Out Of Memory",
        ),
        "The kernel ended a process because memory ran out.",
        0.95,
    ),
    Rule(
        "HostMemory",
        F.OUT_OF_MEMORY_HOST,
        BOTH,
        (
            r"killed due to the node running low on memory",
            r"killed due to memory pressure \(OOM\)",
            r"NODE_OUT_OF_MEMORY",
            r"OOMKilled",
            r"low on resource: memory",
            r"Cannot allocate memory",
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory",
            r"^(?:\S+\.)?_?(?:Array)?MemoryError\b",
            r"ObjectStoreFullError",
        ),
        "The node ran out of memory.",
        0.9,
    ),
    Rule(
        "LoaderKilled",
        F.OUT_OF_MEMORY_HOST,
        BOTH,
        (r"DataLoader worker \(pid\S* [\d, ]+\) is killed by signal: Killed",),
        "A data loader's process was killed from outside, mostly because memory ran out.",
        0.7,
    ),
)

STORAGE: tuple[Rule, ...] = (
    Rule(
        "StorageSilent",
        F.STORAGE_TRANSIENT,
        LOG,
        (
            r"nfs: server \S+ not responding, (?:still trying|timed out)",
            r"MountVolume\.\S+ failed|AttachVolume\.Attach failed|Unable to attach or mount volumes",
            r"Lustre.*(?:Connection to \S+ .*was lost|evicted)",
        ),
        "A file system or volume did not answer.",
        0.75,
    ),
    Rule(
        "StorageUnavailable",
        F.STORAGE_TRANSIENT,
        ("exception",),
        (
            r"SlowDown",
            r"ServiceUnavailable",
            r"503 Service|\b50[0234] Server Error|\bCommError: ",
            r"PytorchStreamWriter failed",
            r"Stale file handle",
            r"Errno 116",
            r"RequestTimeout",
            r"InternalError.*S3|\(InternalError\)|S3UploadFailedError",
            r"AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE)",
            r"AWS Error (?:INTERNAL_FAILURE|REQUEST_TIMEOUT)",
            r"ErrorCode:ServerBusy|OperationTimedOut",
            r"(?:botocore|urllib3)\.exceptions\.(?:ReadTimeout|ConnectTimeout|EndpointConnection|ConnectionClosed"
            r"|IncompleteRead|ProtocolError)",
            r"google\.api_core\.exceptions\.(?:TooManyRequests|InternalServerError|GatewayTimeout|RetryError)",
            r"Errno (?:5|107|121)\]",
        ),
        "The storage did not answer properly.",
        0.7,
    ),
    Rule(
        "DiskFull",
        F.STORAGE_TRANSIENT,
        ("log", "exception"),
        (
            r"\[Errno 28\] No space left on device",
            r"is over 9\d% full, available space",
            r"OutOfDiskError|disk's utilization is over capacity",
            r"low on resource: ephemeral-storage|exceeds the total limit of containers|DiskPressure",
            r"\[Errno 122\] Disk quota exceeded",
        ),
        "A disk is full.",
        0.75,
    ),
)

NETWORK_ROOTS: tuple[Rule, ...] = (
    Rule(
        "LinkDown",
        F.NETWORK_FAULT,
        LOG,
        (
            r"mlx5_core \S+(?: \S+)?: (?:Port: \d+ )?Link (?:down|DOWN)",
            r"NET/IB ?: .*(?:Got completion (?:from peer \S+ )?with|async fatal event)",
            r"NET/IB ?: [Gg]ot async event ?: (?!client reregistration|GID)",
            r"ibv_\w+ failed|IBV_WC_RETRY_EXC_ERR",
            r"NETDEV WATCHDOG: .*transmit queue",
        ),
        "A network link or adapter failed.",
        0.85,
    ),
)

SYMPTOMS: tuple[Rule, ...] = (
    Rule(
        "HungByReport",
        F.HANG,
        BOTH,
        (
            r"NCCLHangError",
            r"WorkerHealthCheckTimeoutError|A worker health check has been hanging",
            r"INFO: task \S+ blocked for more than \d+ seconds",
            r"(?i:hang (?:detected|suspected))",
        ),
        "A process made no step and raised nothing.",
        0.8,
        symptom=True,
        contest="symptom",
    ),
    Rule(
        "ProcessCrashed",
        F.WORKER_CRASH,
        LOG,
        (
            r"failed \(exitcode: -(?:4|6|7|8|9|11)\)",
            r"exitcode +: -(?:4|6|7|8|9|11) \(pid",
            r"Fatal Python error: ",
            r"\bSIG(?:SEGV|ABRT|BUS|ILL|FPE)(?:\(\d+\)| received)",
            r"died with <Signals\.SIG(?:SEGV|ABRT|BUS|ILL)",
            r"Caught signal \d+ \(|exited on signal \d+ \(",
            r"^(?:Segmentation fault|Aborted|Bus error|Illegal instruction)\b",
            r"^(?:free|munmap_chunk|malloc|double free)\b\S*: ",
            XID + r"(?:8|11|13|25|31|32|43|45|69|80)\b",
        ),
        "A process crashed in native code or was ended by a signal.",
        0.75,
        symptom=True,
        contest="symptom",
    ),
    Rule(
        "CudaFault",
        F.WORKER_CRASH,
        BOTH,
        (
            r"an illegal memory access was encountered",
            r"CUDA error: (?:unspecified launch failure|misaligned address)",
            r"CUDA error: (?:an illegal instruction|unknown error)",
            r"(?:CUDNN|CUBLAS)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
            r"DataLoader worker \(pid\S* [\d, ]+\) is killed by signal: (?!Killed|Bus)",
            r"DataLoader worker \(pid\S* [\d, ]+\) exited unexpectedly",
        ),
        "A process crashed: a faulty device or native code; where it comes again tells which.",
        0.7,
        symptom=True,
        contest="symptom",
    ),
    Rule(
        "CollectiveTimeout",
        F.COLLECTIVE_TIMEOUT,
        ("log", "exception"),
        (
            r"Watchdog caught collective operation timeout",
            r"ProcessGroupNCCL'?s? watchdog (?:got stuck|hang)",
            r"Timed out waiting \d+ms for (?:send|recv) operation",
            r"failed to pass monitoredBarrier",
            r"waiting for clients\. \d+/\d+ clients joined",
            r"Exception \(either an error or timeout\) detected by watchdog at work",
        ),
        "Ranks waited in vain for another one in a collective.",
        0.8,
        symptom=True,
        contest="symptom",
    ),
)

PEER_GONE: tuple[Rule, ...] = (
    Rule(
        "PeerGone",
        F.NETWORK_FAULT,
        BOTH,
        (
            r"remote process exited or there was a network error",
            r"Connection (?:closed|reset|refused|timed out)",
            r"Broken pipe",
            r"\bDistNetworkError\b",
            r"socket has (?:timed out|failed to connect)",
            r"Temporary failure in name resolution|Name or service not known",
            r"RendezvousConnectionError|RendezvousTimeoutError",
            r"NCCL error in:? .*(?:unhandled system error|internal error)",
            r"No route to host|Network is unreachable",
        ),
        "A connection to a peer was cut, and nothing says why the peer went.",
        0.6,
        symptom=True,
    ),
)
