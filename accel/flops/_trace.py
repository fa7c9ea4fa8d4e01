"""`trace`: one training step of a model on fake tensors, as the list of its operations with what each costs.

Matrix work is what torch.utils.flop_counter says of an operation: products and convolutions. Everything else is counted
in element operations, one for each element of its largest tensor, and moves bytes: each tensor read or written once by
each operation that uses it, as an implementation without fusion would. A view costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from accel.errors import ArgumentError

PHASES = ("forward", "backward", "optimizer")
# What autocast casts to under each policy; None: it does not.
CASTS = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# Operations that give memory without writing it.
_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh"}


@dataclass(frozen=True)
class Operation:
    """One operation of the step: its work, and the dtype in which it computes ("float32", "bfloat16", ...)."""

    phase: str  # "forward", "backward" or "optimizer"
    name: str  # torch's, such as "aten.convolution"
    dtype: str
    flops: int  # of matrix products and convolutions, 2 for a multiply-add
    elements: int  # element operations of everything else
    bytes: int  # read and written


@dataclass(frozen=True)
class Tally:
    """Sums over operations."""

    flops: int  # FLOP, of matrix products and convolutions
    elements: int  # element operations of everything else
    bytes: int

    @property
    def macs(self) -> int:
        """Multiply-adds: half of the FLOPs."""
        return self.flops // 2


@dataclass(frozen=True)
class Trace:
    """The operations of one training step at `batch` images, in order, and the number of trainable parameters."""

    operations: tuple[Operation, ...]
    batch: int
    parameters: int

    def tally(self, phase: str | None = None) -> Tally:
        """Sums over `phase`, or over the whole step."""
        chosen = [one for one in self.operations if phase in {None, one.phase}]
        return Tally(
            sum(one.flops for one in chosen), sum(one.elements for one in chosen), sum(one.bytes for one in chosen)
        )


def trace(
    model: Callable[..., nn.Module], *, batch: int, size: int = 224, classes: int = 1000, precision: str = "fp32"
) -> Trace:
    """Count a training step of `model(classes)` on images (batch, 3, size, size): forward with the loss, backward, SGD
    with momentum. Raises `ArgumentError` for a batch, size or precision that cannot be used.
    """
    for name, value in (("batch", batch), ("size", size), ("classes", classes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name} is {value!r}; expected an integer from 1")
    if precision not in CASTS:
        raise ArgumentError(f"precision is {precision!r}; expected one of {', '.join(CASTS)}")
    cast = CASTS[precision]
    counter = _Counter()
    with torch.device("meta"):  # initialisation may read values back, which a fake tensor has not
        net = model(classes)
    # Unfused attention: on a CPU torch's flop counter does not know the fused kernel (torch 2.13).
    with FakeTensorMode(allow_non_fake_inputs=True), sdpa_kernel(SDPBackend.MATH):
        net.to_empty(device="cpu")
        images, labels = torch.empty(batch, 3, size, size), torch.zeros(batch, dtype=torch.int64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=True)
        for parameter in net.parameters():  # a first step, uncounted, makes the momentum
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with counter:
            with counter.phase("forward"):
                with torch.autocast("cpu", dtype=cast or torch.bfloat16, enabled=cast is not None):
                    logits = net(images)
                loss = cross_entropy(logits.float(), labels, label_smoothing=0.1)
            with counter.phase("backward"):
                loss.backward()
            with counter.phase("optimizer"):
                optimizer.step()
    parameters = sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
    return Trace(tuple(counter.operations), batch, parameters)


class _Counter(TorchDispatchMode):
    """Notes every operation that reaches the dispatcher, with its cost."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._phase = ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._phase = name
        yield
        self._phase = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func.overloadpacket
        if func.namespace == "prim" or packet.__name__ in _FREE or _is_view(func):
            return out
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        wrote = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if not read and not wrote:
            return out
        count = flop_registry.get(packet)
        flops = int(count(*args, **kwargs, out_val=out)) if count else 0
        largest = max(read + wrote, key=torch.Tensor.numel)
        elements = 0 if count else _elements(func, read, wrote)
        # An operation in place returns what it wrote, and a list of tensors in place returns nothing.
        written = _bytes(wrote) if wrote else _bytes(_list_in_place(args))
        self.operations.append(
            Operation(
                self._phase,
                str(packet),
                str(largest.dtype).removeprefix("torch."),
                flops,
                elements,
                _bytes(read) + written,
            )
        )
        return out


@cache
def _is_view(func: Any) -> bool:
    """Whether every result only points into an argument."""
    returns = func._schema.returns
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _elements(func: Any, read: list[torch.Tensor], wrote: list[torch.Tensor]) -> int:
    if str(func.overloadpacket).startswith("aten._foreach"):  # several tensors at once, each to its end
        return sum(tensor.numel() for tensor in wrote) or max(_numel(read) // 2, 1)
    return max(tensor.numel() for tensor in read + wrote)


def _list_in_place(args: tuple[Any, ...]) -> list[torch.Tensor]:
    first = args[0] if args else None
    return list(first) if isinstance(first, (list, tuple)) else []


def _numel(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of `tensors`, each counted once; one that is expanded counts what it has in memory."""
    return sum(_stored(tensor) for tensor in {id(tensor): tensor for tensor in tensors}.values())


def _stored(tensor: torch.Tensor) -> int:
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0]
    return math.prod(sizes) * tensor.element_size() if tensor.numel() else 0
