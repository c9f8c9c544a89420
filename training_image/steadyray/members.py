"""The driver's handles on its member processes: starting them, asking them, ending them.

Everything that needs Ray's head (placing actors, asking for drained nodes) happens in threads of its own,
so that a head that is away for a while holds up nothing; answers of living members come directly.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from steadyray.actor import Member, Train
from steadyray.guard import Guard
from steadyray.messages import Assignment, MemberError, MemberState, Report, Settings
from steadyray.recovery import OF_THE_PROCESS, MemberView

POLL_SECONDS = 0.2
CALM_POLL_SECONDS = 0.5
"""While nothing is amiss. News is answered at once; with two ranks and their driver on two cores, asking
five times a second and looking ten times cost 7 % of the steps."""
WORKER_RESOURCE = "steadyray_worker"
"""On every worker node of our profiles and on no head: pins what needs no CPU away from the head."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one rank holds, and whether spares hold the same (spare capacity) or next to nothing."""

    cpus: float = 1.0
    gpus: float = 0.0
    spare_capacity: bool = False
    threads: int = 1


@dataclass(slots=True)
class Handle:
    """One member process. Changed by the driver's main thread only, but for `placed`."""

    id: str
    actor: Any = None
    spare: bool = False
    placed: dict[str, Any] = field(default_factory=dict)
    report: Report = field(default_factory=lambda: Report(MemberState.STARTING))
    heard: float = field(default_factory=time.monotonic)
    dead: str = ""
    node_gone: bool = False
    ended: bool = False
    poll: Any = None

    @property
    def node(self) -> str:
        return str(self.placed.get("node", ""))

    def view(self, draining: Iterable[str]) -> MemberView:
        return MemberView(
            self.id, self.node, self.report, self.heard, self.dead, self.node_gone,
            self.node in draining, self.ended,
        )  # fmt: skip


class Members:
    """All member processes of one driver, by id."""

    def __init__(self, train: Train, config: Any, settings: Settings, shape: Shape) -> None:
        self.handles: dict[str, Handle] = {}
        self.draining: frozenset[str] = frozenset()
        self._train, self._config, self._settings, self._shape = train, config, settings, shape
        self._count = 0
        self._guards: dict[str, Any] = {}
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="steadyray-members")
        self._stop = threading.Event()
        threading.Thread(target=self._watch_drains, name="steadyray-drains", daemon=True).start()

    # --- starting ---------------------------------------------------------------------------------
    def spawn(self, spare: bool) -> Handle:
        self._count += 1
        handle = Handle(f"m{self._count:03d}", spare=spare)
        self.handles[handle.id] = handle
        # A thread of its own: one that waits for a node may wait for hours, and must hold up no kill.
        threading.Thread(target=self._start, args=(handle,), name=f"start-{handle.id}", daemon=True).start()
        return handle

    def _start(self, handle: Handle) -> None:
        try:
            options = self._options(handle.spare)
            if self._stop.is_set():
                return
            handle.actor = ray.remote(Member).options(**options).remote(self._settings)
            handle.placed = ray.get(handle.actor.start.remote(self._train, self._config))
        except RayTaskError as error:
            handle.report = Report(MemberState.RAISED, error=_start_error(error))
        except Exception as error:  # noqa: BLE001  a start that failed in silence would count as living
            handle.dead = handle.dead or _first_reason(str(error))

    def _options(self, spare: bool) -> dict[str, Any]:
        holds_capacity = not spare or self._shape.spare_capacity
        threads = str(self._shape.threads)
        options: dict[str, Any] = {
            "max_concurrency": 8,
            "max_restarts": 0,
            "max_task_retries": 0,
            "num_cpus": self._shape.cpus if holds_capacity else 0,
            "num_gpus": self._shape.gpus if holds_capacity else 0,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}},
        }
        if not holds_capacity:
            self._pin_spare(options)
        return options

    def _pin_spare(self, options: dict[str, Any]) -> None:
        """A warm spare sits on a worker node without a rank where there is one, and never on the head."""
        if WORKER_RESOURCE in ray.cluster_resources():
            options["resources"] = {WORKER_RESOURCE: 0.001}
        else:
            options["num_cpus"] = 0.001
        taken = {h.node for h in self.handles.values() if not h.dead and h.node}
        free = [
            n["NodeID"]
            for n in ray.nodes()
            if n["Alive"] and n["NodeID"] not in taken and n["NodeID"] not in self.draining
            and (WORKER_RESOURCE in n["Resources"] or n["Resources"].get("CPU", 0) > 0)
        ]  # fmt: skip
        if free:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(free[0], soft=True)

    # --- asking -----------------------------------------------------------------------------------
    def gather(self, calm: bool) -> None:
        """Take in what members have answered, waiting a moment for the first one; longer when `calm`."""
        wait = CALM_POLL_SECONDS if calm else POLL_SECONDS
        for handle in self.handles.values():
            if handle.placed and not handle.dead and handle.poll is None:
                handle.poll = handle.actor.poll.remote(wait)
        polls = {h.poll: h for h in self.handles.values() if h.poll is not None}
        if not polls:
            self._stop.wait(wait / 2)
            return
        done, _ = ray.wait(list(polls), num_returns=1, timeout=wait / 2)
        if done and len(polls) > 1:
            done, _ = ray.wait(list(polls), num_returns=len(polls), timeout=0)
        for ref in done:
            self._take(polls[ref], ref)

    def _take(self, handle: Handle, ref: Any) -> None:
        handle.poll = None
        try:
            handle.report = ray.get(ref)
            handle.heard = time.monotonic()
            error = handle.report.error
            if error is not None and error.failure_class in OF_THE_PROCESS:
                handle.dead = _first_reason(f"{error.kind}: {error.message}")
                self.kill(handle)
        except ActorUnavailableError:
            return  # the connection broke; whether the process did too, the next poll tells
        except ActorDiedError as error:
            text = str(error)
            handle.dead = _first_reason(text)
            handle.node_gone = "node has died" in text or "node was terminated" in text
        except RayError as error:
            handle.dead = _first_reason(str(error))

    def offer_store(self, handle: Handle, generation: int) -> tuple[str, int] | None:
        try:
            offer: tuple[str, int] = ray.get(handle.actor.offer_store.remote(generation), timeout=3.0)
        except (GetTimeoutError, RayError):
            return None
        return offer

    # --- telling ----------------------------------------------------------------------------------
    def assign(self, handle: Handle, assignment: Assignment) -> None:
        handle.actor.assign.remote(assignment)

    def leave(self, handle: Handle, generation: int, now: bool, save: bool = False) -> None:
        handle.actor.leave.remote(generation, now, save)

    def save_often(self, handle: Handle, generation: int) -> None:
        handle.actor.save_often.remote(generation)

    def end(self, handle: Handle) -> None:
        handle.ended = True
        handle.actor.end.remote()

    # --- ending -----------------------------------------------------------------------------------
    def stacks(self, handle: Handle) -> str:
        """Stacks of a member's threads: from itself where it answers, else read from outside."""
        if time.monotonic() - handle.heard < 2 * CALM_POLL_SECONDS + 1.0:
            try:
                return str(ray.get(handle.actor.stacks.remote(), timeout=2.0))
            except (GetTimeoutError, RayError) as error:
                return f"no stacks: {_first_reason(str(error))}"
        guard = self._guards.get(handle.node)
        if guard is None:
            return "no stacks: the node has no guard yet"
        try:
            return str(ray.get(guard.stacks.remote(handle.placed["pid"]), timeout=8.0))
        except (GetTimeoutError, RayError) as error:
            return f"no stacks: {_first_reason(str(error))}"

    def kill(self, handle: Handle) -> None:
        """End a member for good: by pid through its node's guard (at once), and through Ray."""
        handle.dead = handle.dead or "ended by its driver"
        guard = self._guards.get(handle.node)
        if guard is not None and "pid" in handle.placed:
            guard.kill.remote(handle.placed["pid"])
        if handle.actor is not None:
            self._pool.submit(ray.kill, handle.actor)

    def post_guards(self) -> None:
        """A guard on every node with a member, and nowhere else: it would keep a drained node from going.

        Returns at once.
        """
        manned = {h.node for h in self.handles.values() if h.node and not h.dead}
        for node in manned - self._guards.keys() - self.draining:
            self._guards[node] = None
            self._pool.submit(self._post_guard, node)
        for node in [n for n, guard in self._guards.items() if n not in manned and guard is not None]:
            self._pool.submit(ray.kill, self._guards.pop(node))

    def _post_guard(self, node: str) -> None:
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 4, "scheduling_strategy": strategy}
        self._guards[node] = ray.remote(Guard).options(**options).remote()

    def later(self, work: Callable[..., None], *args: Any) -> Future[None]:
        return self._pool.submit(work, *args)

    def close(self) -> None:
        self._stop.set()
        living = [h.actor for h in self.handles.values() if h.actor is not None and not h.dead]
        for actor in [*living, *(guard for guard in self._guards.values() if guard is not None)]:
            ray.kill(actor)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _watch_drains(self) -> None:
        from ray._private import state

        # The one place where Ray shows that a node is draining; its lists say ALIVE until the end.
        while not self._stop.wait(1.0):
            try:
                self.draining = frozenset(state.state.get_draining_nodes())
            except Exception as error:  # noqa: BLE001  the head may be away; what is unknown is not a drain
                if os.environ.get("STEADYRAY_DEBUG"):
                    print(f"steadyray: cannot ask for draining nodes: {error}", flush=True)


def _first_reason(text: str) -> str:
    """The telling part of Ray's many lines, without the causes that Ray only guesses at."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "died" in line or "terminated" in line or "exit" in line.lower()]
    reason = (telling or lines or ["no reason given"])[0]
    return reason.split(". Some common causes")[0][:300]


def _start_error(error: RayTaskError) -> Any:
    cause = error.cause or error
    return MemberError(type(cause).__name__, str(cause)[:2000], str(error)[-20_000:])
