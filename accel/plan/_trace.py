"""`trace`: the course of memory over one training step of a model, on fake tensors."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from accel.allocator import EXACT, Allocator
from accel.errors import ArgumentError, ModelError
from accel.flops import CASTS
from accel.footprint import Course, Recorder
from accel.plan._ddp import Buckets
from accel.precision import checked_policy
from accel.recompute import checkpoint as recomputed

Loss = Callable[[nn.Module, int], torch.Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def trace(
    model: nn.Module | Callable[[], nn.Module],
    loss: Loss,
    batch: int,
    *,
    optimizer: MakeOptimizer,
    precision: str = "fp32",
    accumulate: int = 1,
    checkpoint: Sequence[str] = (),
    allocator: Allocator = EXACT,
    devices: int = 1,
) -> Course:
    """Record one optimizer step after the first, as `accel.plan.plan` describes its arguments.

    `accumulate` above 1 records two micro-batches: the later ones are as the second. Raises `ModelError` for a model
    without a parameter to train, `ArgumentError` for what cannot be traced.
    """
    cast = CASTS[checked_policy(precision)]
    for name, value in (("batch", batch), ("accumulate", accumulate), ("devices", devices)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name} is {value!r}; expected an integer from 1")
    real = model if isinstance(model, nn.Module) else _built(model)
    if not any(parameter.requires_grad for parameter in real.parameters()):
        raise ModelError(
            f"plan(model={type(real).__name__}): it has no parameter that requires a gradient, so there is no training "
            "step to plan"
        )
    with FakeTensorMode(allow_non_fake_inputs=True):
        net = _faked(real)
        for name in checkpoint:
            _recompute(net, name)
        net.train()
        forward = net.forward

        def policed(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", dtype=cast or torch.bfloat16, enabled=cast is not None):
                return forward(*args, **kwargs)

        net.forward = policed
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        steps = optimizer(trained)
        for parameter in trained:  # a first step, not recorded, makes the optimizer's state
            parameter.grad = torch.empty_like(parameter)
        steps.step()
        steps.zero_grad(set_to_none=True)
        buckets = Buckets(trained) if devices > 1 else None
        with _Recorder(allocator, net, steps, buckets) as recorder:
            for last in (True,) if accumulate == 1 else (False, True):
                if buckets is not None:
                    buckets.reduces = last
                _backward(loss, net, batch)
            steps.step()
            steps.zero_grad(set_to_none=True)
    return recorder.course()


class _Recorder(Recorder):
    """Gives tensors the size that they have on the device planned for, and counts the buckets as there before."""

    def __init__(
        self, allocator: Allocator, net: nn.Module, optimizer: torch.optim.Optimizer, buckets: Buckets | None
    ) -> None:
        super().__init__("cpu", [net], [optimizer], fake=True)
        self._outputs = allocator.outputs
        if buckets is not None:
            self._call("gradients", self.know(buckets.flat))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        found = None if self._outputs is None else self._outputs(func, args, out)
        if found is not None:
            tensor, size = found
            number = self.number(tensor)
            if number is not None:
                self.extra[number] = size - tensor.untyped_storage().nbytes()
                self._see(tensor, made=True)
        return out


def _backward(loss: Loss, net: nn.Module, batch: int) -> None:
    value = loss(net, batch)
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
        raise ArgumentError(
            f"plan(loss): it returned {type(value).__name__}; expected a tensor of one element that depends on the "
            "model"
        )
    value.backward()


def _built(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):  # initialisation may read values back, which a fake tensor has not
        made = make()
    if not isinstance(made, nn.Module):
        raise ArgumentError(f"plan(model): the function returned {type(made).__name__}; expected a torch.nn.Module")
    return made


def _faked(model: nn.Module) -> nn.Module:
    """A copy of `model` whose tensors are fake; ties are kept, and nothing of it is changed or allocated."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        fake = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype)
        memo[id(parameter)] = nn.Parameter(fake, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_strided(buffer.shape, buffer.stride(), dtype=buffer.dtype)
    return copy.deepcopy(model, memo)


def _recompute(model: nn.Module, name: str) -> None:
    """Let the submodule `name` compute its activations again in backward."""
    parts = dict(model.named_modules())
    if name not in parts:
        near = difflib.get_close_matches(name, parts, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ArgumentError(f"plan(checkpoint={name!r}): the model has no such submodule{hint}")
    part = parts[name]
    forward = part.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return recomputed(forward, *args, **kwargs)

    part.forward = again
