"""`GradSync`: how the gradients of all ranks become one sum, so that nothing else asks.

`NoSync` for one process; `DDPSync` hands the work to DistributedDataParallel and reduces itself what DDP did not (a
window ended early, a model called without its wrapper, a second backward through one forward). Gradients are averaged
over ranks.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import DistError

from accel._buckets import BUCKET
from accel._checks import GRADIENTS
from accel._flight import Entry
from accel._signature import Signature
from accel._wait import CLOSED, failure
from accel._words import named
from accel.backend import Backend
from accel.collective import Collective
from accel.control import ControlPlane
from accel.errors import CollectiveError, CollectiveTimeout, ModelError

BUFFER_POLICIES = ("rank0", "mean", "local")

# Words by which a fabric's own errors are told from those of the user's graph; gloo raises plain RuntimeErrors.
FABRIC = ("gloo", "NCCL", "HCCL", *CLOSED)

_UNMADE = object()  # the group for gradients, before the first model is wrapped

# DDP broadcasts buffers in forward, which hangs an evaluation on one rank (T44). torch 2.13 renamed the switch.
_SWITCH = "forward_sync_buffers"
if _SWITCH not in inspect.signature(nn.parallel.DistributedDataParallel).parameters:
    _SWITCH = "broadcast_buffers"
NO_BUFFERS_IN_FORWARD: dict[str, Any] = {_SWITCH: False}


class GradSync(ABC):
    """Makes gradients and buffers equal on all ranks at the end of a window."""

    @abstractmethod
    def wrap(self, model: nn.Module, *, buffers: str, unused_parameters: bool) -> nn.Module:
        """Broadcast rank 0's parameters and buffers and return what to call instead of `model`."""

    @abstractmethod
    def arm(self, last: bool) -> None:
        """Before a forward: whether its backward ends the window, so that it reduces."""

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """`loss.backward()`; raises `CollectiveError` where the reduction inside it fails."""

    def explained(self, error: RuntimeError) -> CollectiveError | None:
        """Accel's error for one that the fabric raised inside a forward or backward; None for any other."""
        return None

    @abstractmethod
    def finish(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Reduce those gradients that backward did not; whether every one is now the same on all ranks."""

    @abstractmethod
    def total(self, value: torch.Tensor) -> None:
        """Sum `value` (0-dim, on the device) over all ranks, in place, between `finish` and the cut."""

    @abstractmethod
    def sync_buffers(self) -> None:
        """Make buffers equal on all ranks, as `wrap` was told; evaluation then needs no collective (T44)."""

    def recover(self) -> None:  # noqa: B027 - most have nothing that a step could leave open
        """Forget a reduction that a backward which failed on every rank left open."""

    def cut(self) -> None:  # noqa: B027 - there is nothing to run on eager devices
        """Run the graph of a window's end on all ranks; nothing on eager devices."""


class NoSync(GradSync):
    """One process: gradients are what they are."""

    def wrap(self, model: nn.Module, *, buffers: str, unused_parameters: bool) -> nn.Module:
        return model

    def arm(self, last: bool) -> None:
        pass

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def finish(self, parameters: Sequence[torch.Tensor]) -> bool:
        return True

    def total(self, value: torch.Tensor) -> None:
        pass

    def sync_buffers(self) -> None:
        pass


class _Synced:
    """One model under DDP, and how far its gradients are reduced in this window."""

    def __init__(self, ddp: nn.parallel.DistributedDataParallel, buffers: str, unused_allowed: bool) -> None:
        self.ddp = ddp
        self.unused_allowed = unused_allowed
        self.forwards = 0  # in this micro-batch, whose backward reduces
        self.reduced = 0  # how many of them a backward has followed
        self.again = False  # a backward ran that DDP did not reduce
        ignored = ddp.parameters_to_ignore  # names the user excluded from DDP: they stay rank-local
        named = list(ddp.module.named_parameters())
        self.parameters = [p for name, p in named if p.requires_grad and name not in ignored]
        self.frozen = [p for name, p in named if not p.requires_grad and name not in ignored]  # may be unfrozen later
        self.local = {id(p) for name, p in named if p.requires_grad and name in ignored}
        self.buffers = [] if buffers == "local" else [b for b in ddp.module.buffers() if b.numel()]
        self.mean = buffers == "mean"
        ddp.register_forward_pre_hook(self._count)

    def _count(self, module: nn.Module, args: Any) -> None:
        # DDP says nowhere whether its forward ran, and without it the backward reduces nothing.
        if torch.is_grad_enabled() and self.ddp.require_backward_grad_sync:
            self.forwards += 1


class DDPSync(GradSync):
    """Gradients by torch's DistributedDataParallel on an eager backend's process group."""

    def __init__(self, backend: Backend, control: ControlPlane) -> None:
        self._device = backend.device
        self._transport = backend.transport
        self._control = control
        self._names: dict[int, str] = {}
        self._collective: Collective = backend.collective
        self._models: list[_Synced] = []
        self._gradients: Any = _UNMADE
        self._entry: Entry | None = None  # of this step's reduction, from the backward that runs it to `finish`
        self._signatures: dict[tuple[int, ...], Signature] = {}  # by the models that it reduces

    def wrap(self, model: nn.Module, *, buffers: str, unused_parameters: bool) -> nn.Module:
        if not any(p.requires_grad for p in model.parameters()):
            self._broadcast([*model.parameters(), *model.buffers()])
            return model  # a frozen model has no gradients to sum, and DDP refuses it
        device = self._device.torch_device
        ddp = nn.parallel.DistributedDataParallel(
            model,
            device_ids=None if device.index is None else [device.index],  # CPU modules take none (T45)
            process_group=self._group(),
            find_unused_parameters=unused_parameters,
            gradient_as_bucket_view=True,
            bucket_cap_mb=BUCKET / 2**20,
            **NO_BUFFERS_IN_FORWARD,
        )
        self._broadcast(list(model.buffers()))
        self._models.append(_Synced(ddp, buffers, unused_parameters))
        self._names.update({id(p): name for name, p in model.named_parameters()})
        return ddp

    def _group(self) -> Any:
        """The fabric's group for gradients; None: that of all ranks."""
        if self._gradients is _UNMADE:
            self._gradients = self._transport.gradient_group(self._collective.timeout)
        return self._gradients

    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        filled = [t.detach() for t in tensors if t.numel()]
        if filled:
            self._collective.broadcast_coalesced(filled, src=0)

    def arm(self, last: bool) -> None:
        for synced in self._models:
            synced.ddp.require_backward_grad_sync = last
            synced.forwards = synced.reduced = 0
            synced.again = False

    def backward(self, loss: torch.Tensor) -> None:
        if self._entry is None:
            reducing = tuple(
                at
                for at, one in enumerate(self._models)
                if one.ddp.require_backward_grad_sync and one.forwards > one.reduced
            )
            if reducing:
                self._entry = self._collective.reduce_gradients(self._signature(reducing))
        try:
            loss.backward()
        except RuntimeError as error:
            known = self.explained(error)
            if known is None:
                raise
            raise known from error
        for synced in self._models:
            synced.again |= synced.ddp.require_backward_grad_sync and synced.forwards == synced.reduced
            synced.reduced = synced.forwards

    def explained(self, error: RuntimeError) -> CollectiveError | None:
        meaning = self._transport.fault(error)
        if meaning is None and not isinstance(error, DistError) and not any(word in str(error) for word in FABRIC):
            return None
        control = self._control
        what = f"the reduction of gradients on rank {control.rank}"
        if self._entry is not None:
            what += f", {self._entry},"
        control.refresh()
        silent = control.silent()  # who is to blame, where this rank has seen it; others may say it in their words
        if not silent:
            try:
                control.check_abort()  # a rank that gave up says why
                self._collective.check_mismatch()
            except CollectiveError as known:
                return known
        if meaning is not None and not silent:
            silent = control.no_sign_of()
        words = f"; no sign of {named(silent)}{control.last_seen(silent)}" if silent else ""
        found = failure(error, what, None if meaning is None else meaning + words)
        if meaning is None and words:
            found = CollectiveTimeout(f"{what} failed{words}. The fabric says: {str(error).strip().splitlines()[0]}")
        return type(found)(f"{found}{control.hung(str(found))}")

    def _signature(self, models: tuple[int, ...]) -> Signature:
        """What the reduction of `models` looks like in records and comparisons: each model as one flat tensor."""
        known = self._signatures.get(models)
        if known is None:
            parameters = [self._models[at].parameters for at in models]
            dtypes = tuple(dict.fromkeys(p.dtype for mine in parameters for p in mine))
            shapes = tuple(torch.Size((sum(p.numel() for p in mine),)) for mine in parameters)
            known = self._signatures[models] = Signature(GRADIENTS, "mean", dtypes, shapes)
        return known

    def finish(self, parameters: Sequence[torch.Tensor]) -> bool:
        if self._entry is not None:
            self._entry.close()
            self._entry = None
        wanted = {id(p) for p in parameters}
        equal = True
        for synced in self._models:
            mine = [p for p in synced.parameters if id(p) in wanted]
            late = [p for p in synced.frozen if p.requires_grad and id(p) in wanted]
            if mine and (synced.again or not synced.reduced):
                self._reduce(mine + late)
            else:
                if not synced.unused_allowed:
                    self._check_complete(mine)
                if late:
                    self._reduce(late)
            equal = equal and not (synced.local & wanted)
        return equal

    def recover(self) -> None:
        for synced in self._models:
            # As torch does before it lets a job go on in another process group (DDP._update_process_group).
            synced.ddp._has_rebuilt_buckets = False
            synced.ddp.reducer._reset_state()
        if self._entry is not None:
            self._entry.close()
            self._entry = None

    def _check_complete(self, parameters: list[torch.Tensor]) -> None:
        """DDP leaves the bucket of a parameter without a gradient unreduced, and says so one forward later."""
        for p in parameters:
            if p.grad is None:
                raise missing_gradient(self._names.get(id(p)))

    def _reduce(self, parameters: list[torch.Tensor]) -> None:
        """Average gradients ourselves: a missing one counts as zero, one that is missing on all ranks stays missing."""
        have = [p.grad is not None for p in parameters]
        try:
            sides = self._collective.all_gather_object(have)
        except CollectiveTimeout as error:
            raise no_backward(self._control.rank, error) from error
        used = [p for p, some in zip(parameters, map(any, zip(*sides, strict=True)), strict=True) if some]
        for p in used:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if used:
            self._collective.all_reduce_coalesced([dense_gradient(p) for p in used], "mean")

    def total(self, value: torch.Tensor) -> None:
        self._collective.all_reduce(value, "sum")

    def sync_buffers(self) -> None:
        for synced in self._models:
            make_equal(self._collective, synced.buffers, synced.mean)


def missing_gradient(name: str | None) -> ModelError:
    return ModelError(
        f"parameter {name!r} got no gradient in this step: the loss does not depend on "
        "it, or it was frozen after prepare. Call prepare(..., unused_parameters=True), or freeze it "
        "before prepare"
    )


def no_backward(rank: int, error: CollectiveTimeout) -> CollectiveTimeout:
    return CollectiveTimeout(
        f"rank {rank} ended a window whose last micro-batch had no backward here, and the other "
        "ranks did not: they wait for this rank's gradients. Call backward equally often on every rank (for "
        f"a batch to be left out: with weight=0 or a loss of 0). {error}"
    )


def make_equal(collective: Collective, buffers: Sequence[torch.Tensor], mean: bool) -> None:
    """Buffers of rank 0 on every rank, or the mean of those that are floating-point."""
    # Counters such as num_batches_tracked are not averaged: integers follow rank 0 under both policies.
    averaged = [b for b in buffers if mean and b.is_floating_point()]
    rest = [b for b in buffers if not (mean and b.is_floating_point())]
    if rest:
        collective.broadcast_coalesced(rest, src=0)
    if averaged:
        collective.all_reduce_coalesced(averaged, "mean")


def dense_gradient(parameter: torch.Tensor) -> torch.Tensor:
    grad = parameter.grad
    assert grad is not None  # the caller has filled it
    if grad.is_sparse:
        raise ModelError("a sparse gradient cannot be averaged over ranks here; use sparse=False in the embedding")
    return grad
