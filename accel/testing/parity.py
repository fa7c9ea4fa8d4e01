"""A training run for the tests of parity, with faults that can be planted in it: the mistakes that parity must name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy
from torch.utils.data import DataLoader

import accel
from accel import data
from accel.testing.models import seeding

BATCH, SIZE, CLASSES = 8, 16, 10
# What is planted, and where parity must find it: step, direction, layer.
FAULTS = {
    "eps": (1, "forward", "bn2"),
    "tf32": (1, "forward", "conv2"),
    "order": (1, "data", "(input)"),
    "scheduler": (4, "update", "(learning rate of group 0)"),
    "dtype": (1, "forward", "conv3"),
    "dropout": (1, "forward", "dropout"),
}
# In the backward pass or after it only, where nothing but rounding differs in the forward of the step.
LATE_FAULTS = {
    "gradient": (1, "backward", "conv3.weight"),  # a tenth too large, before a ReLU, at which rounding flips elements
    "slight gradient": (1, "backward", "fc.weight"),  # a thousandth, where no kink follows
    "momentum": (1, "update", "bn2.running_mean"),  # only BatchNorm's buffers differ
    "decay": (1, "update", "conv1.weight"),  # weight decay in one optimizer
}
FAULT_OF_RANKS = {"reduction": (1, "backward", "fc.weight")}


class Net(nn.Module):
    """Convolutions, BatchNorm, dropout, a classifier: (N, 3, 16, 16) -> (N, 10)."""

    def __init__(self, rounded: bool = False, plain: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2 = (RoundedConv if rounded else nn.Conv2d)(8, 16, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = (UncastConv if plain else nn.Conv2d)(16, 16, 3, padding=1)
        self.bn3 = nn.BatchNorm2d(16)
        self.relu, self.pool = nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        self.dropout, self.fc = nn.Dropout(0.25), nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.relu(self.bn3(self.conv3(x)))
        return self.fc(self.dropout(self.pool(x).flatten(1)))  # type: ignore[no-any-return]


class RoundedConv(nn.Conv2d):
    """Rounds its operands to TF32's 10 bits of mantissa, as tensor cores do with TF32 left on."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        return conv2d(tf32(input), tf32(self.weight), self.bias, self.stride, self.padding)


class UncastConv(nn.Conv2d):
    """Stays in fp32 under autocast."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def tf32(x: torch.Tensor) -> torch.Tensor:
    """`x` (fp32) rounded to nearest at 10 bits of mantissa; the gradient passes."""
    bits = x.detach().contiguous().view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return x + (rounded - x.detach())


def train(backend: str, *, seed: int = 0, steps: int = 6, fault: str = "", precision: str = "fp32") -> None:
    """Train `steps` steps with SGD and a scheduler, on this rank's share of synthetic images."""
    with accel.init(backend=backend, precision=precision, seed=seed, timeout=60.0) as session:
        with seeding:
            torch.manual_seed(seed)
            model = Net(rounded=fault == "tf32", plain=fault == "dtype")
        if fault == "eps":
            model.bn2.eps = 1e-3
        if fault == "gradient":
            model.conv3.weight.register_hook(lambda gradient: gradient * 1.1)
        if fault == "slight gradient":
            model.fc.weight.register_hook(lambda gradient: gradient * 1.001)
        if fault == "momentum":
            model.bn2.momentum = 0.2
        if fault == "reduction" and session.backend.kind == "lazy":
            _leave_out_the_classifier(session.backend.collective)
        elif fault == "reduction":
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                model, ["fc.weight", "fc.bias"]
            )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1 * (fault == "decay"))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
        images = data.synthetic(SIZE, CLASSES, BATCH * session.world_size * steps, seed)
        called, optimizer = session.prepare(model, optimizer, host_dropout=True)
        if fault == "dropout":
            model.dropout.draws = 100  # type: ignore[assignment]
        sampler = session.sampler(images)
        epoch = 1 if fault == "order" else 0
        batches = session.batches(DataLoader(images, BATCH, sampler=sampler), epoch=epoch)
        for step, (x, y) in enumerate(batches, 1):
            with session.autocast():
                logits = called(x)
            session.backward(cross_entropy(logits.float(), y))
            skipped = fault == "scheduler" and step == 3
            session.step(optimizer, scheduler=None if skipped else scheduler)


def _leave_out_the_classifier(collective: Any) -> None:
    """Reduce all gradients but those of the last layer, which come last."""
    whole = collective.all_reduce_coalesced
    collective.all_reduce_coalesced = lambda tensors, *args, **options: whole(tensors[:-2], *args, **options)


@contextlib.contextmanager
def other_kernels() -> Iterator[None]:
    """Compute without oneDNN on the CPU: sums in another order. (torch's own switch warns of absent GPUs, 2.13.)"""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def record(out: Any, backend: str, **arguments: Any) -> Any:
    """The trace of `train(backend, **arguments)`."""
    from accel import parity

    steps = int(arguments.get("steps", 6))
    parity.record(lambda: train(backend, **arguments), out=out, steps=steps, command="test")
    return parity.read(out)


def record_here(out: str, backend: str, arguments: dict[str, Any]) -> str:
    """`record` as a rank runs it: where the trace is."""
    return str(record(out, backend, **arguments).path)
