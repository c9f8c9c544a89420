"""Failure rules about the program: environment, input, checkpoints, numbers, exceptions and exit codes."""

from __future__ import annotations

from steadyray.contract import FailureClass

from ops.policy.rule import Rule

F = FailureClass
LOG = ("log",)
RAISED = ("exception",)
BOTH = ("exception", "log")

STATE: tuple[Rule, ...] = (
    Rule(
        "CheckpointUnreadable",
        F.CHECKPOINT_CORRUPT,
        BOTH,
        (
            r"CheckpointCorrupt",
            r"PytorchStreamReader failed",
            r"invalid header or archive is corrupted",
            r"CheckpointManagerInitializationError",
            r"SafetensorError: ",
            r"CheckpointException ranks",
            r"EOFError: Ran out of input",
            r"UnpicklingError",
            r"unexpected EOF, expected \d+ more bytes|storage has wrong size",
        ),
        "A checkpoint cannot be read.",
        0.85,
    ),
    Rule(
        "NotANumber",
        F.DIVERGENCE,
        BOTH,
        (
            r"(?i:\bloss (?:is|became|was|contains)(?: an?)? (?:nan|inf|infinite|not finite))",
            r"The loss returned in `training_step` is nan",
            r"Function '\w+' returned nan values",
            r"found NaN in local",
            r"loss scale already at minimum",
            r"Unexpected result (?:nan|inf)\b",
            r"FloatingPointError: .*(?:NaN|nan|inf)",
            r"(?i:(?:grad(?:ient)?s?(?: norm)?|weights?) (?:is|are|contain\w*) (?:nan|non-?finite))",
        ),
        "Loss or gradients are no numbers any more.",
        0.9,
    ),
)

ENVIRONMENT: tuple[Rule, ...] = (
    Rule(
        "SharedMemory",
        F.BAD_ENVIRONMENT,
        BOTH,
        (
            r"is killed by signal: Bus error",
            r"unable to (?:write to|open) (?:shared memory|file </torch_)",
            r"shm_open|/dev/shm\b.*(?:full|too small|No space)",
        ),
        "Shared memory (/dev/shm) is too small for the loader's workers.",
        0.85,
    ),
    Rule(
        "ImagePullCut",
        F.NETWORK_FAULT,
        LOG,
        (r"[Ff]ailed to pull image.*(?:timeout|toomanyrequests|connection reset|TLS handshake|50[0-4] )",),
        "The registry of images did not answer.",
        0.75,
    ),
    Rule(
        "ContainerCannotStart",
        F.BAD_ENVIRONMENT,
        LOG,
        (
            r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull",
            r"CreateContainerConfigError|CreateContainerError|RunContainerError",
            r"exec format error",
            r"MountVolume\.\S+ failed.*(?:configmap|secret) \"\S+\" not found",
        ),
        "The container cannot be made from its image and settings.",
        0.9,
    ),
    Rule(
        "EnvironmentBroken",
        F.BAD_ENVIRONMENT,
        BOTH,
        (
            r"NVIDIA driver on your system is too old",
            r"driver version is insufficient for CUDA runtime|system has unsupported display driver",
            r"NCCL WARN Bootstrap : no socket interface found",
            r"No CUDA GPUs are available|no NVIDIA driver on your system",
            r"no kernel image is available for execution",
            r"Could not load library \S+ Error|cannot open shared object file",
            r"numpy\.dtype size changed|operator torchvision::\w+ does not exist",
            r"Cannot find ptxas|Failed to find C compiler",
            r"Version mismatch: The cluster was started with",
            r"Too many open files",
            r"can't start new thread",
            r"version `GLIBC(?:XX)?_[\d.]+' not found",
            r"ExpiredToken|InvalidClientTokenId|token has expired",
            r"CredentialsError|Unable to locate credentials",
            r"ray\.exceptions\.AuthenticationError",
        ),
        "The environment of the job does not fit: driver, version, limit or credential.",
        0.85,
    ),
    Rule(
        "MissingModule",
        F.BAD_ENVIRONMENT,
        RAISED,
        (r"^(?:\S+\()?(?:ModuleNotFoundError|ImportError)\b", r"(?:ModuleNotFoundError|ImportError)\b"),
        "A module that the script imports is not there.",
        0.95,
    ),
)

RAY: tuple[Rule, ...] = (
    Rule(
        "NodeDied",
        F.NODE_LOST,
        RAISED,
        (
            r"node it was running on is dead or unavailable",
            r"its node has died",
            r"missed too many heartbeats",
            r"NodeDiedError",
            r"LocalRayletDiedError",
            r"local raylet died",
        ),
        "A node went away under the training.",
        0.9,
    ),
    Rule(
        "ActorNotMade",
        F.USER_ERROR,
        RAISED,
        # unless what it raised there is in turn the death of another process
        (
            r"error raised in its creation task(?!(?s:.*)"
            r"(?:died unexpectedly|exit type: SYSTEM_ERROR|WorkerCrashedError|ActorUnavailableError))",
        ),
        "The script raised an exception in the constructor of an actor.",
        0.9,
    ),
    Rule(
        "WorkerDied",
        F.WORKER_CRASH,
        RAISED,
        (
            r"worker died unexpectedly|The actor died unexpectedly",
            r"Worker exit type: SYSTEM_ERROR",
            r"WorkerCrashedError",
            r"ActorDiedError|RayActorError|OwnerDiedError|ObjectLostError",
            r"ActorUnavailableError",
            r"A worker health check failed",
        ),
        "A worker process ended without an exception of its own; Ray's text cannot say why.",
        0.7,
    ),
)

EXCEPTIONS: tuple[Rule, ...] = (
    Rule(
        "ProgramFault",
        F.USER_ERROR,
        BOTH,
        (
            r"device-side assert triggered",
            r"ncclInvalidUsage|Duplicate GPU detected",
            r"^(?:SyntaxError|IndentationError|TabError): ",
        ),
        "The script itself is wrong.",
        0.9,
    ),
    Rule(
        "InputMissing",
        F.BAD_INPUT,
        RAISED,
        (
            r"(?:FileNotFoundError|IsADirectoryError|NotADirectoryError|PermissionError)\b",
            r"NoSuch(?:Key|Bucket)|(?i:access.?denied)|403 Forbidden|\b40[134] Client Error",
            r"exceptions\.NotFound: 404|\b(?:Blob|Container|Resource)NotFound(?:Error)?\b",
            r"UnidentifiedImageError|JSONDecodeError|UnicodeDecodeError",
            r"ArrowInvalid|Parquet magic bytes",
            r"not a valid model identifier|RepositoryNotFoundError|DatasetNotFoundError",
        ),
        "A file or data that the script needs is not there or cannot be read.",
        0.8,
    ),
    Rule(
        "SignalRaised",
        F.UNKNOWN,
        BOTH,
        (r"SignalException: Process \d+ got signal", r"^(?:Killed|Terminated)\s*$"),
        "The program was ended by a signal from outside; nothing says by whom.",
        0.3,
        symptom=True,
    ),
)

LAST_EXCEPTION: tuple[Rule, ...] = (
    Rule(
        "OwnException",
        F.USER_ERROR,
        RAISED,
        (r"\S",),
        "The script raised an exception.",
        0.9,
    ),
)

EXITS: tuple[Rule, ...] = (
    Rule(
        "CommandNotFound",
        F.BAD_ENVIRONMENT,
        ("exit", "log"),
        (r"^12[67]$", r"^(?:/bin/)?(?:ba)?sh: (?:\d+: |line \d+: )?\S+: (?:command )?not found"),
        "The command does not exist or cannot be executed.",
        0.9,
    ),
    Rule(
        "ScriptNotFound",
        F.BAD_INPUT,
        LOG,
        (r"can't open file '[^']*': \[Errno 2\]",),
        "The script file does not exist.",
        0.95,
    ),
    Rule(
        "NativeCrash",
        F.WORKER_CRASH,
        ("exit",),
        (r"^(?:134|135|136|139|-6|-7|-8|-11)$",),
        "The driver crashed in native code.",
        0.6,
    ),
    Rule(
        "Killed",
        F.UNKNOWN,
        ("exit",),
        (r"^(?:137|-9|143|-15|247)$",),
        "The driver was ended by a signal from outside; the exit code alone cannot say by whom.",
        0.3,
    ),
    Rule(
        "OwnExitCode",
        F.USER_ERROR,
        ("exit",),
        (r"^(?!0$)\d+$",),
        "The script ended itself with a code other than 0.",
        0.8,
    ),
    Rule(
        "StoppedInRay",
        F.CANCELLED,
        ("job",),
        (r"^STOPPED\b",),
        "Somebody stopped the job in Ray.",
        0.8,
    ),
    Rule(
        "UsageError",
        F.USER_ERROR,
        LOG,
        (
            r": error: (?:argument \S+: |unrecognized arguments|the following arguments are required)",
            r"^Could not override '|^Key '\S+' is not in struct",
        ),
        "The script's options are wrong.",
        0.9,
    ),
    Rule(
        "NothingKnown",
        F.UNKNOWN,
        ("job", "api", "log", "exit"),
        (),
        "No rule knows this ending.",
        0.1,
    ),
)
