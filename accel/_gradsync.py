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

from accel.backend import Backend
from accel.collective import Collective
from accel.errors import ModelError

BUFFER_POLICIES = ("rank0", "mean", "local")

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
    def after_backward(self) -> None: ...

    @abstractmethod
    def finish(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Reduce those gradients that backward did not; whether every one is now the same on all ranks."""

    @abstractmethod
    def sync_buffers(self) -> None:
        """Make buffers equal on all ranks, as `wrap` was told; evaluation then needs no collective (T44)."""


class NoSync(GradSync):
    """One process: gradients are what they are."""

    def wrap(self, model: nn.Module, *, buffers: str, unused_parameters: bool) -> nn.Module:
        return model

    def arm(self, last: bool) -> None:
        pass

    def after_backward(self) -> None:
        pass

    def finish(self, parameters: Sequence[torch.Tensor]) -> bool:
        return True

    def sync_buffers(self) -> None:
        pass


class _Synced:
    """One model under DDP, and how far its gradients are reduced in this window."""

    def __init__(self, ddp: nn.parallel.DistributedDataParallel, buffers: str) -> None:
        self.ddp = ddp
        self.forwards = 0  # in this micro-batch, whose backward reduces
        self.last_backward = 0  # value of `forwards` at the last backward
        self.again = False  # a backward ran that DDP did not reduce
        ignored = ddp.parameters_to_ignore  # names the user excluded from DDP: they stay rank-local
        named = list(ddp.module.named_parameters())
        self.parameters = [p for name, p in named if p.requires_grad and name not in ignored]
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

    def __init__(self, backend: Backend) -> None:
        self._device = backend.device
        self._collective: Collective = backend.collective
        self._models: list[_Synced] = []

    def wrap(self, model: nn.Module, *, buffers: str, unused_parameters: bool) -> nn.Module:
        if not any(p.requires_grad for p in model.parameters()):
            self._broadcast([*model.parameters(), *model.buffers()])
            return model  # a frozen model has no gradients to sum, and DDP refuses it
        device = self._device.torch_device
        ddp = nn.parallel.DistributedDataParallel(
            model,
            device_ids=None if device.index is None else [device.index],  # CPU modules take none (T45)
            find_unused_parameters=unused_parameters,
            gradient_as_bucket_view=True,
            **NO_BUFFERS_IN_FORWARD,
        )
        self._broadcast(list(model.buffers()))
        self._models.append(_Synced(ddp, buffers))
        return ddp

    def _broadcast(self, tensors: list[torch.Tensor]) -> None:
        filled = [t.detach() for t in tensors if t.numel()]
        if filled:
            self._collective.broadcast_coalesced(filled, src=0)

    def arm(self, last: bool) -> None:
        for synced in self._models:
            synced.ddp.require_backward_grad_sync = last
            synced.forwards = synced.last_backward = 0
            synced.again = False

    def after_backward(self) -> None:
        for synced in self._models:
            synced.again |= synced.ddp.require_backward_grad_sync and synced.forwards == synced.last_backward
            synced.last_backward = synced.forwards

    def finish(self, parameters: Sequence[torch.Tensor]) -> bool:
        wanted = {id(p) for p in parameters}
        equal = True
        for synced in self._models:
            mine = [p for p in synced.parameters if id(p) in wanted]
            if mine and (synced.again or not synced.forwards):
                self._reduce(mine)
            equal = equal and not (synced.local & wanted)
        return equal

    def _reduce(self, parameters: list[torch.Tensor]) -> None:
        """Average gradients ourselves. A parameter without a gradient on some ranks counts as zero there, on all as
        none.
        """
        have = [p.grad is not None for p in parameters]
        anywhere = [any(column) for column in zip(*self._collective.all_gather_object(have), strict=True)]
        used = [p for p, some in zip(parameters, anywhere, strict=True) if some]
        for p in used:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if used:
            self._collective.all_reduce_coalesced([_dense(p) for p in used], "mean")

    def sync_buffers(self) -> None:
        for synced in self._models:
            for mean in (False, True):
                # Counters such as num_batches_tracked are not averaged: integers follow rank 0 under both policies.
                group = [b for b in synced.buffers if (synced.mean and b.is_floating_point()) is mean]
                if mean and group:
                    self._collective.all_reduce_coalesced(group, "mean")
                elif group:
                    self._collective.broadcast_coalesced(group, src=0)


def _dense(parameter: torch.Tensor) -> torch.Tensor:
    grad = parameter.grad
    assert grad is not None  # the caller has filled it
    if grad.is_sparse:
        raise ModelError("a sparse gradient cannot be averaged over ranks here; use sparse=False in the embedding")
    return grad
