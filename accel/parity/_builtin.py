"""The models that `accel parity record --model` trains: fixed data from a seed, through a session as a script would.

Data and its order come from host generators alone, so that they are the same on every backend; each rank has its own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from accel import data, init, models
from accel.errors import ArgumentError

VOCABULARY, BLOCK = 256, 32
_seeding = threading.Lock()  # ranks may be threads of one process, which share torch's generator


@dataclass(frozen=True)
class Work:
    """What to train. `size`: image side in px; `dropout` is used by the language model only. `rate`: the peak learning
    rate; that of a ResNet is small on purpose, and its blocks begin as the identity: at the usual rate, or with random
    blocks, it amplifies rounding so much that after a few steps no two chips agree.
    """

    model: str
    steps: int
    seed: int = 0
    batch: int = 8
    size: int = 32
    precision: str = "fp32"
    accumulate: int = 1
    dropout: float = 0.1
    rate: float | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ArgumentError(f"--model {self.model}: expected one of {', '.join(MODELS)}")
        for name, value in (("--batch", self.batch), ("--size", self.size)):
            if value < 1:
                raise ArgumentError(f"{name} {value}: expected at least 1")
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"--dropout {self.dropout}: expected a number from 0 and below 1")


class Tokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """`length` random sequences of BLOCK tokens, (S,) int64, and the tokens that follow; item i is of `seed` and i."""

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = np.random.default_rng((self._seed, index)).integers(VOCABULARY, size=BLOCK + 1)
        return torch.from_numpy(drawn[:-1].copy()), torch.from_numpy(drawn[1:].copy())


def train(work: Work) -> None:
    """Train `work.steps` optimizer steps on the backend that the environment decides."""
    with init(backend=work.backend, precision=work.precision, accumulate=work.accumulate, seed=work.seed) as session:
        length = work.batch * work.accumulate * work.steps * session.world_size
        with _seeding:
            torch.manual_seed(work.seed)  # the same initial values whatever the rank
            model, optimizer = _built(work)
        dataset: Dataset[object] = (
            Tokens(length, work.seed)
            if work.model == "lm"
            else data.parse("synthetic", work.size, length=length, seed=work.seed)[0]
        )
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=work.steps)
        model, optimizer = session.prepare(model, optimizer, host_dropout=True)
        loader = DataLoader(dataset, work.batch, sampler=session.sampler(dataset), drop_last=True)
        for inputs, targets in session.batches(loader):
            with session.autocast():
                logits = model(inputs)
            loss = cross_entropy(logits.float().flatten(0, -2), targets.flatten())
            session.backward(loss)
            session.step(optimizer, scheduler=scheduler)


def _built(work: Work) -> tuple[nn.Module, torch.optim.Optimizer]:
    model: nn.Module
    if work.model == "lm":
        model = models.TransformerLM(VOCABULARY, BLOCK, depth=4, heads=4, width=128, dropout=work.dropout)
    elif work.model == "vit":
        model = models.VisionTransformer(work.size, 8, depth=6, heads=4, width=192, hidden=768, num_classes=1000)
    else:
        make = models.resnet50 if work.model == "resnet50" else models.resnet18
        model = make(1000, zero_init_residual=True)
        return model, torch.optim.SGD(model.parameters(), lr=work.rate or 1e-3, momentum=0.9, weight_decay=1e-4)
    return model, torch.optim.AdamW(model.parameters(), lr=work.rate or 5e-4, betas=(0.9, 0.95), weight_decay=0.1)


MODELS = ("resnet50", "resnet18", "vit", "lm")
