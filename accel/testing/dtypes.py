"""Which dtype each kind of operation runs in under a policy, seen below autocast while a small model trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {  # a part of the operator's name: what the table calls it; the first that fits
    "batch_norm": "BatchNorm",
    "layer_norm": "LayerNorm",
    "convolution": "convolution",
    "addmm": "linear",
    "linear": "linear",
    "relu": "ReLU",
    "pool": "pooling",
    "log_softmax": "loss",
    "nll_loss": "loss",
    "softmax": "softmax",
}
ROWS = ("convolution", "linear", "BatchNorm", "LayerNorm", "ReLU", "pooling", "softmax", "loss", "optimizer")


class Every(nn.Module):
    """One of each kind: (N, 3, 8, 8) -> logits (N, 4) and probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.pool, self.ln, self.fc = nn.MaxPool2d(2), nn.LayerNorm(64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.pool(self.relu(self.bn(self.conv(x))))
        logits = self.fc(self.ln(x.flatten(1)))
        return logits, torch.softmax(logits, dim=1)


class Dtypes(TorchDispatchMode):
    """`seen`: by kind of operation, the dtypes of its floating-point inputs and those of its results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.seen: dict[str, tuple[list[str], list[str]]] = {}
        self.within: str | None = None  # what all operations are part of now: the optimizer, or a decomposed layer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::")
        kind = next((kind for word, kind in KINDS.items() if word in name), None)
        if "backward" in name:
            kind = None
        elif self.within is not None and (kind is not None or self.within == "optimizer"):
            kind = self.within
        if kind is not None:
            known = self.seen.setdefault(kind, ([], []))
            for into, values in zip(known, (args, [result]), strict=True):
                into += [dtype for dtype in dtypes_of(values) if dtype not in into]
        return result


def dtypes_of(args: Any) -> list[str]:
    """Names of the floating-point dtypes among `args`, in order, without repeats."""
    tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a])]
    found = [
        str(t.dtype).removeprefix("torch.") for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()
    ]
    return list(dict.fromkeys(found))


def cells(seen: dict[str, tuple[list[str], list[str]]]) -> dict[str, str]:
    """By row of the table: the dtype of the activations, that of parameters or of other inputs, and of the result."""
    return {row: _cell(row, *seen[row]) if row in seen else "not seen" for row in ROWS}


def _cell(row: str, inputs: list[str], results: list[str]) -> str:
    said = inputs[0]
    if row in ("BatchNorm", "LayerNorm") and len(inputs) > 1:
        said += f", parameters {inputs[1]}"
    elif len(inputs) > 1:
        said = " and ".join(inputs)
    # The statistics that a normalisation returns beside its output are always fp32.
    return said if results[:1] in ([], inputs[:1]) else f"{said}, result {results[0]}"


def watch(mode: Dtypes, model: Every, optimizer: torch.optim.Optimizer) -> None:
    """Tell `mode` what is at work. (XLA's LayerNorm is a BatchNorm to the dispatcher, torch 2.9.)"""

    def within(what: str | None) -> Any:
        return lambda *_: setattr(mode, "within", what)

    model.ln.register_forward_pre_hook(within("LayerNorm"))
    model.ln.register_forward_hook(within(None))
    optimizer.register_step_pre_hook(within("optimizer"))
    optimizer.register_step_post_hook(within(None))


def traced(session: Any) -> dict[str, str]:
    """Train one step of `Every` on `session`, as our examples do, and return the dtype of each kind of operation."""
    torch.manual_seed(0)
    model = Every()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    called, optimizer = session.prepare(model, optimizer)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    make: Any = Dtypes
    with make() as mode:
        watch(mode, model, optimizer)
        for inputs, targets in session.batches([(x, y)]):
            with session.autocast():
                logits, probabilities = called(inputs)
                loss = cross_entropy(logits, targets) + 0 * probabilities.float().sum()
            session.backward(loss)
            session.step(optimizer)
    return cells(mode.seen)
