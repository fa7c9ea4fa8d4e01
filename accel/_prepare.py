"""Preparing a model and its optimizers: checks, placement on the device, and one broadcast of rank 0's state.

Placement keeps ties and re-points optimizers where a backend makes new parameters (`module.to(xla)` does).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from accel.backend import Backend
from accel.errors import ArgumentError, ModelError

CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
HALF = (torch.float16, torch.bfloat16)


def check(model: object, optimizers: tuple[Any, ...]) -> None:
    """Raise `ArgumentError` or `ModelError`, before anything is moved, for what cannot be trained."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"prepare(model={type(model).__name__}): expected a torch.nn.Module first, then its optimizers"
        )
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        if parameter.dtype in HALF:
            raise ModelError(
                f"prepare(model): parameter {name!r} is {parameter.dtype}; master weights must be float32 in every "
                "precision policy. Do not call model.half() or .bfloat16(); choose accel.init(precision=...) instead"
            )
    for name, buffer in model.named_buffers():
        if buffer.dtype in HALF:
            raise ModelError(
                f"prepare(model): buffer {name!r} is {buffer.dtype}; statistics must be float32 in "
                f"every precision policy"
            )
    _check_devices(named)
    mine = {id(parameter) for parameter in named.values()}
    for position, optimizer in enumerate(optimizers, 1):
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(
                f"prepare(argument {position + 1} is {type(optimizer).__name__}): expected a torch.optim.Optimizer"
            )
        if inspect.signature(optimizer.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
            raise ArgumentError(
                f"prepare({type(optimizer).__name__}): its step needs a closure, which would run "
                f"collectives at will; use another optimizer"
            )
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                if id(parameter) not in mine:
                    raise ModelError(
                        f"prepare({type(optimizer).__name__}): parameter {i} of group {g}, shape "
                        f"{tuple(parameter.shape)}, does not belong to the model: the optimizer was built for another "
                        "model, or before the model's parameters were replaced"
                    )


def layout(model: nn.Module, wanted: bool | None, backend: Backend) -> torch.memory_format | None:
    """The memory format that 4-dimensional parameters are to have; None keeps theirs.

    `wanted`: channels_last or not; None takes it where the backend is faster so and the model has 2-D convolutions.
    Raises `UnsupportedError` where it is wanted and the backend refuses it.
    """
    if wanted:
        backend.capabilities().require("prepare.channels_last")
        return torch.channels_last
    if wanted is False or not backend.capabilities().offers("prepare.channels_last"):
        return torch.contiguous_format
    faster = backend.precision.channels_last() and any(isinstance(m, CONVOLUTIONS) for m in model.modules())
    return torch.channels_last if faster else None


def place(
    model: nn.Module,
    optimizers: tuple[torch.optim.Optimizer, ...],
    device: torch.device,
    layout: torch.memory_format | None,
) -> None:
    """Move `model` to `device` in place, expanded buffers made whole so that they can be written; parameters that
    became new objects are tied again and put into the optimizers.
    """
    before = dict(model.named_parameters(remove_duplicate=False))
    if layout is not None:
        model.to(memory_format=layout)  # type: ignore[call-overload]  # of 4-D tensors only; on the host, where it works
    model.to(device)
    for name, buffer in list(model.named_buffers()):
        if 0 in buffer.stride() and buffer.numel() > 1:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, buffer.contiguous())
    first: dict[int, nn.Parameter] = {}
    for name, old in before.items():
        new = first.setdefault(id(old), model.get_parameter(name))
        if new is not old and old.requires_grad:  # the user's gradient hooks, in the same dict, so that handles hold
            new._backward_hooks = old._backward_hooks
            new._post_accumulate_grad_hooks = old._post_accumulate_grad_hooks
        if model.get_parameter(name) is not new:
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, new)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [_moved_state(optimizer, old, first[id(old)]) for old in group["params"]]


def _moved_state(optimizer: torch.optim.Optimizer, old: torch.Tensor, new: nn.Parameter) -> nn.Parameter:
    """Carry the state of `old` to `new`, on its device; scalar step counters stay where their optimizer keeps them."""
    state = optimizer.state.pop(old, None)
    if state is not None:
        optimizer.state[new] = {
            key: value.to(new.device) if isinstance(value, torch.Tensor) and value.dim() > 0 else value
            for key, value in state.items()
        }
    return new


def _check_devices(named: dict[str, nn.Parameter]) -> None:
    by_device: dict[torch.device, str] = {}
    for name, parameter in named.items():
        by_device.setdefault(parameter.device, name)
    if torch.device("meta") in by_device:
        raise ModelError(
            f"prepare(model): parameter {by_device[torch.device('meta')]!r} is on the meta device and has no values; "
            "materialise the model with model.to_empty(device='cpu') and initialise it first"
        )
    if len(by_device) > 1:
        where = ", ".join(f"{name!r} on {device}" for device, name in by_device.items())
        raise ModelError(
            f"prepare(model): its parameters are on several devices ({where}); put the whole model "
            f"on one, or leave it on the CPU"
        )


_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
