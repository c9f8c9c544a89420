"""What the driver does next about its group of ranks. Pure: no clock, no I/O, no Ray.

group.py gathers a GroupView, asks `decide`, and carries out the answer. The rules are tried in the order of
`RULES`; the first that has something to say wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from steadyray.contract import Depth, FailureClass
from steadyray.messages import WAITING_STAGES, MemberState, Report

FREE = frozenset({FailureClass.PREEMPTED, FailureClass.MAINTENANCE})
"""Losses that are nobody's fault and spend no budget."""

OF_THE_PROCESS = frozenset({FailureClass.WORKER_CRASH})
"""What a rank may raise and a new process mends, as where a worker of its data loader was killed: it is
dead then."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds, before something counts as wrong."""

    hang_floor: float = 5.0
    hang_steps: float = 10.0
    """A rank for which all others wait is hung after max(hang_floor, hang_steps x median step)."""
    hang_alone: float = 60.0
    """The same without that second signal, and before the first step of a process."""
    silent: float = 2.0
    """A process that has not answered for this long is taken as frozen or cut off."""
    leave: float = 1.0
    """Once a group breaks, who neither left it nor answers for this long is lost with it."""
    gather: float = 5.0
    """Wait this long for more members once there are enough to start."""
    charged: int = 3
    """Recoveries in a row without a new step before the job gives up."""
    capacity: float | None = None
    """Below the smallest world size: how long to wait for new members before the job gives up. By default as
    long as the supervisor's --wait-limit lets it, or 300 s where there is none."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """One process as the driver sees it; times are the driver's monotonic seconds."""

    id: str
    node: str
    report: Report
    heard: float
    dead: str = ""
    """Why it is gone, in Ray's words; empty while it lives."""
    node_gone: bool = False
    draining: bool = False
    ended: bool = False

    @property
    def usable(self) -> bool:
        return not self.dead and not self.ended

    @property
    def leaving(self) -> bool:
        return self.draining or self.report.leaving


@dataclass(frozen=True, slots=True)
class Loss:
    member: str
    failure_class: FailureClass
    reason: str


@dataclass(frozen=True, slots=True)
class Breaking:
    """A generation that is being left: since when, why, and who is not coming along."""

    since: float
    lost: tuple[Loss, ...]
    planned: bool = False
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class GroupView:
    now: float
    workers_min: int
    workers_max: int
    members: Mapping[str, MemberView]
    generation: int = 0
    ranks: tuple[str, ...] = ()
    """Member ids by rank of the current generation."""
    breaking: Breaking | None = None
    last_step: int = 0
    last_step_at: float = 0.0
    """When a new step was last seen, or the generation began."""
    phase_at: float = 0.0
    """When a rank was last seen in a phase that it still had patience for: hangs are counted from there."""
    waiting_since: float = 0.0
    """Since when there are too few members to go on."""
    enough_since: float | None = None
    charged: int = 0
    """Charged recoveries since the last new step."""
    false_alarms: int = 0
    hangs: tuple[tuple[int, str], ...] = ()
    """(step, node) of earlier hangs."""
    patience: Patience = field(default_factory=Patience)

    def current(self) -> list[MemberView]:
        return [self.members[m] for m in self.ranks]

    @property
    def most(self) -> int:
        """Ranks at most; one without a sample of the global batch would fail in its step."""
        batch = max((m.report.samples for m in self.current()), default=0)
        return min(self.workers_max, batch or self.workers_max)

    def survivors(self) -> list[MemberView]:
        """Ranks that are waited for when a generation ends.

        Who hands over at a step boundary is one until it is out: it may be saving what no other rank holds.
        """
        lost = {loss.member for loss in self.breaking.lost} if self.breaking else set()
        return [m for m in self.current() if m.usable and m.id not in lost - self.told()]

    def told(self) -> set[str]:
        """Ranks that were told to hand over at the next step boundary, and are not lost otherwise."""
        if self.breaking is None or not self.breaking.planned:
            return set()
        free = {x.member for x in self.breaking.lost if x.failure_class in FREE}
        return free - {x.member for x in self.breaking.lost if x.failure_class not in FREE}

    def ready(self) -> list[MemberView]:
        """Members that could take a place and answer: warm spares, and new ones."""
        lost = {loss.member for loss in self.breaking.lost} if self.breaking else set()
        return [
            m
            for m in self.members.values()
            if m.usable and not m.leaving and m.id not in lost and not self.silent(m)
            and m.report.state is MemberState.READY and m.id not in self.ranks
        ]  # fmt: skip

    def silent(self, member: MemberView) -> bool:
        return self.now - member.heard >= self.patience.silent

    @property
    def hang_seconds(self) -> float:
        medians = [m.report.step_seconds for m in self.current() if m.report.step_seconds is not None]
        if not medians:
            return self.patience.hang_alone
        p = self.patience
        return float(max(p.hang_floor, p.hang_steps * max(medians)) * 2 ** min(self.false_alarms, 3))


# --- answers -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Keep:
    reason: str


@dataclass(frozen=True, slots=True)
class Break:
    """Let every rank leave the generation; `planned` ones at a step boundary."""

    lost: tuple[Loss, ...]
    message: str
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """Somebody has left: make the collectives of the others fail, since they wait for it."""


@dataclass(frozen=True, slots=True)
class Regroup:
    ranks: tuple[str, ...]
    source: int | None
    """Rank with the newest state; None: rank 0 takes the newest checkpoint, or starts afresh."""
    receivers: tuple[int, ...]
    depth: Depth
    from_step: int


@dataclass(frozen=True, slots=True)
class Lose:
    """More members turned out to be lost while the generation is being left."""

    lost: tuple[Loss, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """There are too few members to go on."""

    missing: int
    message: str


@dataclass(frozen=True, slots=True)
class End:
    """Every rank has done all steps: let `train` return."""


@dataclass(frozen=True, slots=True)
class Done:
    member: str


@dataclass(frozen=True, slots=True)
class Fail:
    failure_class: FailureClass
    message: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class SaveOften:
    """A rank will go whom nobody replaces: what is saved until then is all that is left."""


Answer = Keep | Break | Abort | Regroup | Lose | Wait | End | Done | Fail | SaveOften


# --- rules -------------------------------------------------------------------------------------------
def user_code_raised(view: GroupView) -> Answer | None:
    """No recovery inside the job mends a bug, so nothing is retried."""
    for member in view.members.values():
        error = member.report.error
        if error is not None and error.failure_class not in OF_THE_PROCESS:
            where = f"rank {member.report.rank}" if member.report.rank >= 0 else "a worker"
            return Fail(error.failure_class, f"{where}: {error.kind}: {error.message}", member.id)
    return None


def train_took_no_part(view: GroupView) -> Answer | None:
    """A `train` without the loop over generations would leave the driver waiting for members for ever."""
    for member in view.members.values():
        if member.report.state is MemberState.RETURNED and member.report.generation == 0 and not member.ended:
            message = "train returned without a step: its loop must be over steadyray.generations(state)"
            return Fail(FailureClass.USER_ERROR, message, member.id)
    return None


def training_returned(view: GroupView) -> Answer | None:
    if view.ranks and view.current()[0].report.state is MemberState.RETURNED:
        return Done(view.ranks[0])
    return None


def after_the_last_step(view: GroupView) -> Answer | None:
    """Rank 0 still evaluates and saves; if it is lost now, a new group does that from the last checkpoint."""
    if view.breaking is not None or not view.ranks or not view.current()[0].ended:
        return None
    first = view.current()[0]
    if first.dead:
        return _within_budget(view, (_loss(first),), "rank 0 was lost after the last step")
    if view.now - first.heard >= view.patience.hang_alone:
        lost = Loss(first.id, FailureClass.HANG, "does not answer after the last step")
        return _within_budget(view, (lost,), "rank 0 does not answer after the last step")
    return Keep("Finishing")


def ranks_lost(view: GroupView) -> Answer | None:
    known = {loss.member for loss in view.breaking.lost} if view.breaking else set()
    # Who was through with all steps was ended with the generation, and is no loss.
    gone = [m for m in view.current() if m.dead and m.id not in known]
    new = tuple(_loss(m) for m in gone if not (m.ended and view.breaking))
    if not new:
        return None
    if view.breaking is not None:
        return Lose(new)
    return _within_budget(view, new, "; ".join(x.reason for x in new))


def still_leaving(view: GroupView) -> Answer | None:
    """Wait until every survivor is out; who does not answer meanwhile is lost too."""
    breaking = view.breaking
    if breaking is None:
        return None
    inside = [m for m in view.survivors() if not _out(m, view.generation)]
    if not inside or _only_go(view, inside):
        return None
    # A rank that froze while it was to leave at a boundary closes no connection: the others wait for it.
    missed = any(loss.failure_class not in FREE for loss in breaking.lost)
    if breaking.planned and not breaking.aborted and (missed or len(inside) < len(view.survivors())):
        return Abort()
    age = view.now - breaking.since
    # Where nothing was lost there is no hurry, and who saves or hands on its state may be slow to answer.
    patience = view.patience.hang_floor if breaking.planned else view.patience.leave
    silent = [m for m in inside if age >= patience and view.now - m.heard >= patience]
    stuck = [m for m in inside if age >= _leave_seconds(view, m)]
    if stuck and breaking.planned and not breaking.aborted:
        return Abort()  # those that only wait for a slow one leave at once then, with their state
    lost = {m.id: Loss(m.id, FailureClass.HANG, "does not leave its step") for m in stuck}
    # A killed process is known dead within 0.1 s while its node lives, so silence speaks for the node.
    lost |= {m.id: Loss(m.id, FailureClass.NODE_LOST, "does not answer") for m in silent}
    return Lose(tuple(lost.values())) if lost else Keep("Leaving")


def regroup(view: GroupView) -> Answer | None:
    """All survivors are out (or there was no generation yet): form the next one."""
    if view.ranks and view.breaking is None:
        return None
    survivors = view.survivors()
    chosen = _fill(view, _staying(view, survivors))
    if len(chosen) < view.workers_min:
        waited = view.now - view.waiting_since
        message = f"{len(chosen)} of at least {view.workers_min} workers are ready"
        if view.patience.capacity is not None and waited >= view.patience.capacity:
            return Fail(FailureClass.CAPACITY_MISSING, f"{message} after {waited:.0f} s")
        return Wait(view.workers_max - len(chosen), message)
    if not view.ranks and len(chosen) < view.workers_max and not _gathered(view):
        return Wait(view.workers_max - len(chosen), f"{len(chosen)} of {view.workers_max} workers are ready")
    return _compose(view, chosen, survivors)


def rank_left(view: GroupView) -> Answer | None:
    """A collective failed in a living rank: the reason shows within moments, or it was the network."""
    left = [m for m in view.current() if m.report.lost_peer and _out(m, view.generation)]
    if not left:
        return None
    message = f"a collective failed: {left[0].report.lost_peer[:200]}"
    if view.charged >= view.patience.charged:
        return Fail(FailureClass.NETWORK_FAULT, _spent(view, message))
    return Break((), message)


def all_finished(view: GroupView) -> Answer | None:
    if view.ranks and all(m.report.state is MemberState.FINISHED for m in view.current()):
        return End()
    return None


def rank_hangs(view: GroupView) -> Answer | None:
    """No new step, and the others wait for one rank; or no new step for very long."""
    inside = [
        m
        for m in view.current()
        if m.report.state in (MemberState.TRAINING, MemberState.FORMING)
        or m.report.generation < view.generation
    ]
    if any(m.report.phase and view.now - view.last_step_at < m.report.patience for m in inside):
        return None
    quiet = view.now - max(view.last_step_at, view.phase_at)
    if not inside or quiet < min(view.hang_seconds, view.patience.hang_alone):
        return None
    laggards = _laggards(view, inside)
    # A process that answers may well be slow in its first step: it compiles, allocates, loads.
    warming = any(m.report.step_seconds is None and not view.silent(m) for m in laggards)
    limit = max(view.hang_seconds, view.patience.hang_alone) if warming else view.hang_seconds
    if laggards and quiet >= limit:
        return _hang(view, laggards, f"no step for {quiet:.1f} s while the other ranks wait")
    if quiet >= view.patience.hang_alone * 2 ** min(view.false_alarms, 3):
        behind = min(_position(m) for m in inside)
        slowest = [m for m in inside if _position(m) == behind]
        named = slowest if len(slowest) < len(inside) or len(inside) == 1 else []
        return _hang(view, named, f"no step for {quiet:.1f} s")
    return None


def rank_hands_over(view: GroupView) -> Answer | None:
    leaving = [m for m in view.current() if m.leaving]
    stay = len(view.current()) - len(leaving) + len(view.ready())
    if leaving and stay >= view.workers_min:
        lost = tuple(Loss(m.id, FailureClass.PREEMPTED, _why_leaving(m)) for m in leaving)
        return Break(lost, "; ".join(loss.reason for loss in lost), planned=True)
    return None


def group_can_grow(view: GroupView) -> Answer | None:
    room = view.most - len(view.ranks)
    if view.ranks and room > 0 and view.ready() and not any(m.report.phase for m in view.current()):
        return Break((), f"{min(room, len(view.ready()))} more worker(s) are ready", planned=True)
    return None


def rank_goes_unreplaced(view: GroupView) -> Answer | None:
    """Too few would stay, so it trains until its node is taken, and the rest of the group stops then."""
    return SaveOften() if any(m.leaving for m in view.current()) else None


RULES: tuple[Callable[[GroupView], Answer | None], ...] = (
    user_code_raised,
    train_took_no_part,
    training_returned,
    after_the_last_step,
    ranks_lost,
    still_leaving,
    regroup,
    rank_left,
    all_finished,
    rank_hangs,
    rank_hands_over,
    group_can_grow,
    rank_goes_unreplaced,
)


def decide(view: GroupView) -> Answer:
    for rule in RULES:
        if (answer := rule(view)) is not None:
            return answer
    return Keep("Training")


# --- helpers -----------------------------------------------------------------------------------------
def _leave_seconds(view: GroupView, member: MemberView) -> float:
    """What a rank gets to leave its step.

    An abort ends no computing: neither an evaluation, which goes on for as long as it was granted, nor the
    first step of a process that answers, which compiles and loads.
    """
    limit = max(view.hang_seconds, view.patience.leave)
    if member.report.step_seconds is None and not view.silent(member):
        limit = max(limit, view.patience.hang_alone)
    return max(limit, member.report.patience) if member.report.phase else limit


def _out(member: MemberView, generation: int) -> bool:
    r = member.report
    return r.generation == generation and r.state in (MemberState.READY, MemberState.FINISHED)


def _loss(member: MemberView) -> Loss:
    kind = FailureClass.NODE_LOST if member.node_gone else FailureClass.WORKER_CRASH
    return Loss(member.id, FailureClass.PREEMPTED if member.leaving else kind, member.dead)


def _why_leaving(member: MemberView) -> str:
    return f"node {member.node} is drained" if member.draining else "the process got SIGTERM"


def _laggards(view: GroupView, inside: list[MemberView]) -> list[MemberView]:
    """Who the others wait for: silent ones, and those behind ranks in a collective or a rendezvous."""
    waiting = [
        m
        for m in inside
        if not view.silent(m)
        and m.report.generation == view.generation
        and (m.report.stage in WAITING_STAGES or m.report.state is MemberState.FORMING)
    ]
    if not waiting:
        return []
    front = min(_position(m) for m in waiting)
    behind = [m for m in inside if view.silent(m) or _position(m) < front]
    # Somebody who is neither behind nor waiting is computing: then the others do not wait for the laggard.
    return behind if len(behind) + len(waiting) == len(inside) else []


def _position(member: MemberView) -> tuple[int, int, int]:
    r = member.report
    return (r.generation, 0, 0) if r.state is MemberState.FORMING else (r.generation, r.step, r.stage)


def _hang(view: GroupView, suspects: list[MemberView], message: str) -> Answer:
    step = view.last_step
    nodes = {m.node for m in suspects}
    if nodes and any(s == step and node not in nodes for s, node in view.hangs):
        return Fail(
            FailureClass.USER_ERROR,
            f"step {step + 1} hung on {len(nodes | {n for s, n in view.hangs if s == step})} different "
            "nodes: the code or its data hangs there, not the machine",
            suspects[0].id if suspects else None,
        )
    return _within_budget(view, tuple(Loss(m.id, FailureClass.HANG, message) for m in suspects), message)


def _within_budget(view: GroupView, lost: tuple[Loss, ...], message: str) -> Answer:
    charged = [loss for loss in lost if loss.failure_class not in FREE]
    if charged and view.charged >= view.patience.charged:
        return Fail(charged[0].failure_class, _spent(view, message), charged[0].member)
    if not lost and view.charged >= view.patience.charged:
        return Fail(FailureClass.HANG, _spent(view, message))
    return Break(lost, message)


def _spent(view: GroupView, message: str) -> str:
    return f"{view.charged} recoveries brought no new step after step {view.last_step}; last: {message}"


def _gathered(view: GroupView) -> bool:
    return view.enough_since is not None and view.now - view.enough_since >= view.patience.gather


def _only_go(view: GroupView, inside: list[MemberView]) -> bool:
    """Whether only ranks that hand over are left inside, and the state is safe without them."""
    told = view.told()
    kept = any(_holds(m) and m not in inside and m.id not in told for m in view.survivors())
    return kept and all(m.id in told for m in inside)


def _staying(view: GroupView, survivors: list[MemberView]) -> list[MemberView]:
    """Who keeps its place: not those that hand over, unless the state would go with them.

    A rank told to go while the group already broke for another has not saved: it takes part once more, in
    the generation that hands its state to the newcomers, and goes at the next step boundary.
    """
    staying = [m for m in survivors if not m.leaving and not m.ended]
    told = view.told()
    untold = [m for m in survivors if m.leaving and not m.ended and m.id not in told and _holds(m)]
    if untold and not any(_holds(m) for m in staying):
        staying.append(max(untold, key=lambda m: m.report.step))
    return staying


def _holds(member: MemberView) -> bool:
    return member.report.clean and not member.report.fresh


def _fill(view: GroupView, staying: list[MemberView]) -> list[MemberView]:
    """Members of the next generation by rank: who stays keeps its rank where it can."""
    newcomers = view.ready()
    places: list[MemberView | None] = [m if m in staying else None for m in view.current()]
    places = [p if p is not None else (newcomers.pop(0) if newcomers else None) for p in places]
    chosen = [p for p in places if p is not None]
    return (chosen + newcomers)[: view.most]


def _compose(view: GroupView, chosen: list[MemberView], survivors: list[MemberView]) -> Regroup:
    """Take the state from the newest rank that stays; a reload where none has a whole copy."""
    ids = tuple(m.id for m in chosen)
    holders = [m for m in chosen if m in survivors and _holds(m)]
    if not holders:
        return Regroup(ids, None, tuple(range(1, len(chosen))), Depth.RELOAD, 0)
    best = max(holders, key=lambda m: m.report.step)
    current = [m for m in holders if m.report.step == best.report.step]
    receivers = tuple(i for i, m in enumerate(chosen) if m not in current)
    return Regroup(ids, chosen.index(best), receivers, Depth.HOT, best.report.step)
