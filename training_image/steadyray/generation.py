"""The user's side of a recovery: a loop over generations, and the steps inside one.

A generation is one process group. When a rank is lost the `with generation:` block ends quietly in the
ranks that live, and the loop continues with the next generation, whose state is the newest finished step.

    state = steadyray.State(model=model, optimizer=optimizer, sampler=sampler)
    for generation in steadyray.generations(state):
        with generation:
            ddp = generation.wrap(model)
            for step in generation.steps(sampler):
                optimizer.zero_grad()
                for indices in step.micro_batches(64):
                    step.backward(loss_sum(ddp(x[indices]), y[indices]))
                optimizer.step()
                step.commit()
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from steadyray import data_parallel
from steadyray import session as sessions
from steadyray.checkpoint import Saved, Saver
from steadyray.collective import is_lost_peer
from steadyray.sampler import Indices, Sampler, share
from steadyray.session import Place, Session
from steadyray.state import State, seed_step


def generations(state: State) -> Iterator[Generation]:
    """One generation after the other until the training has finished on every rank.

    Under `steadyray.run` a new one begins whenever the group changes. Under torchrun or in one process
    there is one.
    """
    session = sessions.current()
    while (place := session.join(state)) is not None:
        generation = Generation(session, state, place)
        yield generation
        generation.close()


class Generation:
    """This rank's view of one process group; a context manager around its steps."""

    def __init__(self, session: Session, state: State, place: Place) -> None:
        self.rank = place.rank
        self.world_size = place.world_size
        self.number = place.generation
        self.device = _device(place)
        self._session = session
        self._state = state
        self._wrapped: list[DistributedDataParallel] = []
        self._local = place.local
        self._own_group = place.local and place.world_size > 1 and not dist.is_initialized()
        self._saver = self._make_saver()

    def _make_saver(self) -> Saver | None:
        s = self._session.settings
        if s.root is None or self.rank != 0:
            return None
        parent, saved_step, since = self._session.last_checkpoint()
        return Saver(
            root=s.root, attempt=s.attempt, generation=self.number, every_seconds=s.checkpoint_seconds,
            every_steps=s.checkpoint_steps, parent=parent, keep=s.keep_checkpoints,
            on_saved=self._on_saved, on_error=lambda message: self._session.saved_checkpoint(error=message),
            last_step=saved_step,
            last_time=since,
        )  # fmt: skip

    def __enter__(self) -> Generation:
        if self._own_group:
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        if self._local and self.world_size > 1:
            self._start_from_rank_zero()
        return self

    def _start_from_rank_zero(self) -> None:
        """Under torchrun nobody else sees to it that the ranks begin with the same weights."""
        held: list[Any] = [self._state.state_dict() if self.rank == 0 else None]
        dist.broadcast_object_list(held, src=0, device=self.device)
        if self.rank != 0:
            self._state.load_state_dict(held[0])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not is_lost_peer(error):
            return False
        if error is None:
            self._finish()
        else:
            self._state.roll_back()
            if self._session.must_save() and self._state.clean:
                self._finish()
        data_parallel.unwrap(self._wrapped)
        self._wrapped.clear()
        self._session.left(error, self._state)
        if error is not None and trace is not None:
            # Frames of the failed step hold the old DDP module, whose hooks would fire in the next one.
            traceback.clear_frames(trace)
        return error is not None

    def _finish(self) -> None:
        saver = self._saver
        if saver is None or (saver.last_step == self._state.step and not saver.writing and not saver.failed):
            return
        with self.phase("save"):
            for _ in range(2):  # nobody comes after this one, so a write that failed is tried again
                saver.wait()
                if saver.last_step == self._state.step and not saver.failed:
                    break
                self._save(wait=True)

    def close(self) -> None:
        # In a group, peers already wait for this rank in the next rendezvous: the write goes on beside it.
        if self._saver is not None and self._local:
            self._saver.wait()
        if self._own_group and dist.is_initialized():
            dist.destroy_process_group()

    # --- the model --------------------------------------------------------------------------------
    def wrap(self, module: nn.Module, **options: Any) -> nn.Module:
        """`module` for data parallel training: DDP, or the module itself where this rank is alone.

        `options` go to DistributedDataParallel. A module that does not use all its parameters in each step
        needs `find_unused_parameters=True`, as there.
        """
        self._refuse_strangers(module)
        module.to(self.device)
        for optimizer in self._state.optimizers if self.device.type != "cpu" else []:
            # A state that was received or loaded before its parameters moved follows them to the device.
            optimizer.load_state_dict(optimizer.state_dict())
        if self.world_size == 1:
            return module
        self._session.stage("reduce")
        ddp = data_parallel.wrap(module, self.device, lambda: self._session.stage("forward"), options)
        self._session.stage("data")
        self._wrapped.append(ddp)
        return ddp

    def _refuse_strangers(self, module: nn.Module) -> None:
        """What is trained must be in the state, or a newcomer would begin with other weights, unseen."""
        modules = [part for part in self._state.parts.values() if isinstance(part, nn.Module)]
        known = {id(p) for part in modules for p in part.parameters()}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                raise ValueError(f"{name} is wrapped but not in State: pass its module to State too")

    # --- steps ------------------------------------------------------------------------------------
    def steps(self, sampler: Sampler) -> Iterator[Step]:
        """The steps that are left, from the sampler's position. Each must be committed."""
        self._session.total_steps(sampler.total_steps)
        if sampler.position != self._state.step:
            raise ValueError(
                f"the sampler stands at step {sampler.position} and the state at {self._state.step}: "
                "pass the sampler to State as well, so that both are saved and restored together"
            )
        while sampler.position < sampler.total_steps:
            self._session.begin_step(self._state.step)
            self._state.begin_step()
            seed_step(self._session.settings.seed, self._state.step, self.rank)
            step = Step(self, sampler)
            self._state.before_update = step._before_optimizer
            yield step
            if not step.committed:
                raise RuntimeError(
                    f"step {step.number} ended without step.commit(): its state can be neither "
                    "handed to a peer nor saved. Call commit() after the optimiser's step"
                )

    @contextlib.contextmanager
    def phase(self, name: str, patience: float = 600.0) -> Iterator[None]:
        """Work between steps that may take up to `patience` seconds, such as evaluation."""
        self._session.phase(name, patience)
        try:
            yield
        finally:
            self._session.phase(None, 0.0)

    def _commit(self, sampler: Sampler, loss: float | None, metrics: dict[str, float]) -> None:
        sampler.position += 1
        self._state.commit_step()
        self._session.committed(self._state.step, loss, sampler.global_batch, metrics)
        if self._saver is not None and self._saver.due(self._state.step, self._session.is_ending()):
            # The copy holds up all ranks, and may take longer than a hang would.
            self._session.phase("save", 600.0, recorded=False)
            self._save()
            self._session.phase(None, 0.0, recorded=False)

    def _check_group(self) -> None:
        """On a GPU an aborted collective looks like one that has ended, so the group itself is asked."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
            self._session.check_group()

    def _save(self, wait: bool = False) -> None:
        assert self._saver is not None
        samplers = [p for p in self._state.parts.values() if isinstance(p, Sampler)]
        samples = samplers[0].position * samplers[0].global_batch if samplers else 0
        self._saver.save(
            self._state.state_dict(), world_size=self.world_size, samples=samples,
            sampler=samplers[0].state_dict() if samplers else {}, wait=wait,
        )  # fmt: skip

    def _on_saved(self, saved: Saved) -> None:
        self._session.saved_checkpoint(
            step=saved.step, id=saved.id, bytes=saved.bytes,
            blocking_seconds=saved.blocking_seconds, total_seconds=saved.total_seconds,
        )  # fmt: skip


class Step:
    """One optimiser step over one global batch, of which this rank computes its share."""

    def __init__(self, generation: Generation, sampler: Sampler) -> None:
        self.number = sampler.position
        """Counted from 0 over the whole training."""
        self.epoch = sampler.epoch
        self.committed = False
        self._generation = generation
        self._sampler = sampler
        self._loss: torch.Tensor | None = None
        self._exchanges_gradients = True
        self._reductions: list[tuple[dist.Work, torch.Tensor]] = []

    def micro_batches(self, limit: int | None = None) -> Iterator[Indices]:
        """This rank's indices in pieces of at most `limit`; gradients are exchanged in the last piece only.

        The global batch stays the same whatever the world size is: with fewer ranks each gets more pieces.
        """
        g = self._generation
        mine = share(self._sampler.batch(), g.rank, g.world_size)
        if len(mine) == 0:
            raise ValueError(
                f"{g.world_size} ranks cannot share a global batch of {self._sampler.global_batch}: "
                "use at most as many workers as samples a batch"
            )
        size = limit or len(mine)
        for begin in range(0, len(mine), size):
            last = begin + size >= len(mine)
            self._exchanges_gradients = last
            with contextlib.ExitStack() as stack:
                for ddp in [] if last else g._wrapped:
                    stack.enter_context(ddp.no_sync())
                yield mine[begin : begin + size]

    def loss(self, loss_sum: torch.Tensor) -> torch.Tensor:
        """Scale a *sum* over this rank's samples so that DDP's mean over ranks is the global batch's mean."""
        g = self._generation
        g._session.stage("reduce" if self._exchanges_gradients else "data")
        detached = loss_sum.detach().to(torch.float64, copy=True)
        self._loss = detached if self._loss is None else self._loss + detached
        if self._exchanges_gradients and g.world_size > 1:
            # Sent before the gradients and awaited after them: it costs no wait of its own, and every rank
            # knows the loss of every finished step, so that none is lost with the rank that dies next.
            work = dist.all_reduce(self._loss, async_op=True)
            self._reductions.append((work, self._loss))
            self._loss = None
        return loss_sum * (g.world_size / self._sampler.global_batch)

    def backward(self, loss_sum: torch.Tensor) -> None:
        """`loss(loss_sum).backward()`; the peers wait for this rank until it has come here."""
        self.loss(loss_sum).backward()  # type: ignore[no-untyped-call]
        self._before_update()

    def _before_update(self) -> None:
        """After the exchange, before an optimiser changes anything; raises for a lost peer."""
        if not self._exchanges_gradients:
            return  # more pieces of this step come, or the optimiser's hook refuses
        data_parallel.check_reduced(self._generation._wrapped)
        self._await_loss()
        self._generation._session.stage("update")

    def _before_optimizer(self) -> None:
        if not self._exchanges_gradients:
            raise RuntimeError(
                "optimizer.step() was called before the last of step.micro_batches(): the gradients are not "
                "averaged over the ranks yet. Call it after the loop over the micro batches"
            )
        self._before_update()
        self._generation._check_group()  # here and not after each backward: it waits for the GPU

    def _await_loss(self) -> None:
        for work, _ in self._reductions:
            work.wait()

    def commit(self, loss: float | None = None, **metrics: float) -> None:
        """The state now holds this step. Call it right after the optimiser's step, on every rank.

        `loss` is what is shown for this step; by default the global batch's mean of what was given to
        `backward`. `metrics` are shown as they are, from rank 0.
        """
        self._await_loss()
        if loss is None:
            sums = [total for _, total in self._reductions] + ([] if self._loss is None else [self._loss])
            loss = float(sum(sums)) / self._sampler.global_batch if sums else None
        numbers = {name: self._number(name, value) for name, value in metrics.items()}
        loss = None if loss is None else self._number("loss", loss)
        self._generation._check_group()
        self.committed = True
        self._generation._commit(self._sampler, loss, numbers)

    def _number(self, name: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            kind = type(value).__name__
            raise TypeError(f"{name} of step {self.number} is no number but a {kind}: {error}") from None


def _device(place: Place) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", sessions._env("LOCAL_RANK", 0) if place.local else 0)
