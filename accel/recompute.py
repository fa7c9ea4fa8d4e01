"""`accel.checkpoint`: activation checkpointing that computes a part of the forward twice but changes state once.

torch's own runs a module's forward again in backward, and with it every update of a buffer: BatchNorm's running
statistics would move twice a step and its counter count twice (T08). Nothing here writes files; for those see
`Session.save`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from accel._masks import Replay as Masks
from accel.errors import ArgumentError, UnsupportedError

Replay = Callable[[], contextlib.AbstractContextManager[None]]


class Replayer(Protocol):
    """What a device type that has no torch device module does in place of it; its backend registers it."""

    def capture(self, device: torch.device) -> Replay:
        """Remember random state and autocast before a forward; what comes back puts them back for a recomputation."""

    def apart(self, tensor: torch.Tensor) -> torch.Tensor:
        """An equal tensor that a compiler does not know to be equal."""


_replayers: dict[str, Replayer] = {}  # by device type


def register_replayer(device_type: str, replayer: Replayer) -> None:
    """Let `checkpoint` take tensors of `device_type`."""
    _replayers[device_type] = replayer


def checkpoint(run: Callable[..., Any], *args: Any, modules: Sequence[nn.Module] = (), **kwargs: Any) -> Any:
    """`run(*args, **kwargs)`, keeping only its inputs for backward, where it is computed again.

    `run` is a module, a module's method, or a function; a function names the `modules` that it calls. Outputs,
    gradients, buffers and dropout masks are those of the plain call. Raises `ArgumentError` for a function that names
    no modules, `UnsupportedError` on devices whose random state torch cannot replay.
    """
    if isinstance(run, nn.Module):
        owners: Sequence[nn.Module] = (run,)
    elif isinstance(getattr(run, "__self__", None), nn.Module):
        owners = (run.__self__,)  # type: ignore[attr-defined]
    elif modules:
        owners = modules
    else:
        raise ArgumentError(
            f"checkpoint(run={getattr(run, '__name__', type(run).__name__)}): a function must name "
            f"the modules it calls, as in "
            "checkpoint(run, x, modules=[model.layer1]), so that their buffers are updated once"
        )
    if torch.compiler.is_compiling():
        # Compiled, the recomputation is a part of the backward's graph: buffers are written by the forward's alone, and
        # random numbers are kept (torch 2.9 to 2.13). Its tracer takes no context_fn of ours.
        return torch_checkpoint(run, *args, use_reentrant=False, **kwargs)
    device = _without_module(args)
    masks = Masks(owners)
    if device is not None:
        return _replayed(run, args, kwargs, owners, masks, device)
    return torch_checkpoint(run, *args, use_reentrant=False, context_fn=lambda: _contexts(owners, masks), **kwargs)


def _replayed(
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    owners: Sequence[nn.Module],
    masks: Masks,
    device: torch.device,
) -> Any:
    """As `checkpoint`, on a device whose own part torch does not know: torch is shown no tensor of it."""
    replayer = _replayers[device.type]
    replay = replayer.capture(device)
    again = False

    def call() -> Any:
        if not again:
            return run(*args, **kwargs)
        mine = (isinstance(arg, torch.Tensor) and arg.device == device for arg in args)
        return run(*(replayer.apart(arg) if here else arg for arg, here in zip(args, mine, strict=True)), **kwargs)

    @contextlib.contextmanager
    def recomputing() -> Iterator[None]:
        nonlocal again
        again = True
        try:
            with replay(), masks, _buffers_kept(owners):
                yield
        finally:
            again = False

    return torch_checkpoint(call, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), recomputing()))


def _contexts(
    owners: Sequence[nn.Module], masks: Masks
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """What the forward and its recomputation run in."""
    return contextlib.nullcontext(), _recomputing(owners, masks)


@contextlib.contextmanager
def _recomputing(owners: Sequence[nn.Module], masks: Masks) -> Iterator[None]:
    with masks, _buffers_kept(owners):
        yield


@contextlib.contextmanager
def _buffers_kept(owners: Sequence[nn.Module]) -> Iterator[None]:
    """Let a recomputation write to copies of the buffers: any module that updates one in forward is covered."""
    kept = [
        (m, name, b) for owner in owners for m in owner.modules() for name, b in m._buffers.items() if b is not None
    ]
    try:
        for module, name, buffer in kept:
            module._buffers[name] = buffer.clone()
        yield
    finally:
        for module, name, buffer in kept:
            module._buffers[name] = buffer


def _without_module(args: Sequence[Any]) -> torch.device | None:
    """The device of `args` for which torch has no device module; None where torch does everything itself.

    Raises `UnsupportedError` where nobody could replay a dropout mask.
    """
    for device in {arg.device for arg in args if isinstance(arg, torch.Tensor)}:
        if device.type in _replayers:
            return device
        try:
            torch.get_device_module(device.type)
        except RuntimeError as error:
            raise UnsupportedError(
                f"checkpoint(): torch has no module for device type {device.type!r}, so dropout masks could not be "
                "replayed"
            ) from error
    return None
