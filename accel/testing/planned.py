"""A training step of a network for images, planned and measured, for tests that hold one against the other."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import accel
from accel import models, plan

CLASSES = 10


class Measured(NamedTuple):
    """What training gave."""

    state: dict[str, torch.Tensor]  # of the model, on the host
    peak: int  # bytes of the last window, less what was there before the model


class Narrow(nn.Module):
    """Few parameters and many activations: six residual blocks of 16 channels, each of which can be recomputed."""

    def __init__(self, checkpoint: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1))
            for _ in range(6)
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + (accel.checkpoint(block, x) if self.checkpoint else block(x))
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


def wide() -> nn.Sequential:
    """Many parameters and few activations; the gradients fill more than one of DDP's buckets."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
                         nn.Linear(2048, CLASSES))  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model and how it is trained."""

    model: str = "resnet18"  # or "resnet50", "narrow" or "wide"
    size: int = 32  # px
    batch: int = 32  # images a micro-batch on one device
    precision: str = "fp32"
    accumulate: int = 1
    checkpoint: bool = False

    def made(self) -> nn.Module:
        if self.model == "narrow":
            return Narrow(self.checkpoint)
        if self.model == "wide":
            return wide()
        make = {"resnet18": models.resnet18, "resnet50": models.resnet50}[self.model]
        return make(CLASSES, checkpoint=self.checkpoint)

    def planned(self, backend: Any, devices: int = 1) -> plan.Plan:
        """What the plan says for devices of `backend`."""

        def loss(model: Any, batch: int) -> torch.Tensor:
            images = torch.empty(batch, 3, self.size, self.size)
            return cross_entropy(model(images).float(), torch.zeros(batch, dtype=torch.int64))

        return plan.plan(
            self.made,
            loss,
            batch=self.batch,
            optimizer=lambda parameters: _sgd(parameters, backend),
            precision=self.precision,
            accumulate=self.accumulate,
            devices=devices,
            allocator=backend.memory.allocator,
        )

    def measured(self, session: Any, steps: int) -> Measured:
        """Train for `steps` optimizer steps and measure the last; `session` has the precision and the accumulation."""
        backend = session.backend
        gc.collect()  # what earlier sessions left in cycles would go at any moment of this one
        before = backend.memory.stats().allocated or 0  # what other tests hold
        torch.manual_seed(3)
        net = self.made()
        model, sgd = session.prepare(net, _sgd(net.parameters(), backend))
        images = backend.device.move(torch.randn(self.batch, 3, self.size, self.size))
        labels = backend.device.move(torch.arange(self.batch) % CLASSES)

        def window() -> None:
            for _ in range(self.accumulate):
                with session.autocast():
                    outputs = model(images)
                session.backward(cross_entropy(outputs.float(), labels))
                session.step(sgd)

        for _ in range(steps - 1):
            window()
        with backend.memory.track() as tracked:
            window()
        if tracked.peak is None:
            raise AssertionError(tracked.reasons["peak"])
        state = {name: value.detach().cpu() for name, value in session.unwrap(model).state_dict().items()}
        return Measured(state, tracked.peak - before)


def measured_on_rank(case: Case, steps: int) -> Measured:
    """`Case.measured` on a rank of `RankPool`."""
    with accel.init(precision=case.precision, accumulate=case.accumulate, timeout=120) as session:
        return case.measured(session, steps)


def _sgd(parameters: Any, backend: Any) -> torch.optim.Optimizer:
    fused = backend.capabilities().offers("train.fused_optimizer")
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4, fused=fused)
