"""`accel.checkpoint`: activation checkpointing that computes a part of the forward twice but changes state once.

torch's own runs a module's forward again in backward, and with it every update of a buffer: BatchNorm's running
statistics would move twice a step and its counter count twice (T08). Nothing here writes files; for those see
`Session.save`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from accel.errors import ArgumentError, UnsupportedError


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
    _check_devices(args)
    return torch_checkpoint(run, *args, use_reentrant=False, context_fn=lambda: _contexts(owners), **kwargs)


def _contexts(
    owners: Sequence[nn.Module],
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """What the forward and its recomputation run in."""
    return contextlib.nullcontext(), _buffers_kept(owners)


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


def _check_devices(args: Sequence[Any]) -> None:
    for kind in {arg.device.type for arg in args if isinstance(arg, torch.Tensor)}:
        try:
            torch.get_device_module(kind)
        except RuntimeError as error:
            raise UnsupportedError(
                f"checkpoint(): torch has no module for device type {kind!r}, so dropout masks could not be replayed"
            ) from error
