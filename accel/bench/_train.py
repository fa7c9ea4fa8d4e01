"""The training that a benchmark times: data, model, the recipe, optimizer steps one at a time, and evaluation.

The recipe is that of NVIDIA's ResNet-50 v1.5 (https://github.com/NVIDIA/DeepLearningExamples, ConvNets/resnet50v1.5),
with the linear scaling and warm-up of Goyal et al. (https://arxiv.org/abs/1706.02677).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, default_collate

from accel import models, records
from accel.bench._goal import Evaluated, check_counted
from accel.bench._split import Phases
from accel.capabilities import Support
from accel.errors import ArgumentError, DataError
from accel.footprint import Course, Recorder

if TYPE_CHECKING:
    from accel._meter import Meter
    from accel.bench._options import Options
    from accel.data import ImageDataset
    from accel.session import Session

LR_PER_IMAGE = 0.256 / 256  # peak, for an image of the global batch
MOMENTUM = 0.875
WEIGHT_DECAY = 1 / 32768
LABEL_SMOOTHING = 0.1
WARM_UP = 0.1  # of the schedule

IN_THE_LOOP, SYNTHETIC = "in the loop", "synthetic"


def loader(session: Session, dataset: ImageDataset, batch: int, workers: int, pinned: bool | None = None) -> Any:
    """A sized iterable of (images, labels) batches for this rank; synthetic is one batch that stays on the device.

    `pinned`: batches are made in page-locked memory; None: where the backend has it. Raises `UnsupportedError` where it
    was asked for and the backend has none.
    """
    offers = session.backend.capabilities()
    if pinned:
        offers.require("memory.pinned")
    if dataset.name == "synthetic":
        mine = range(session.rank * batch, (session.rank + 1) * batch)
        images, labels = default_collate([dataset[index] for index in mine])
        move = session.backend.device.move
        return Again((move(images), move(labels)))
    loader = DataLoader(
        dataset,
        batch,
        sampler=session.sampler(dataset),
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=offers.offers("memory.pinned") if pinned is None else pinned,
    )
    if len(dataset) // session.world_size < batch:
        raise DataError(
            f"batch is {batch}, but there are {len(dataset)} images for {session.world_size} ranks; lower the batch"
        )
    return loader


class Again:
    """A loader that gives one batch again and again; the length only says after how many an epoch ends."""

    def __init__(self, batch: tuple[torch.Tensor, torch.Tensor], length: int = 1000) -> None:
        self._batch = batch
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return itertools.repeat(self._batch, self._length)


def build(model: str, size: int, checkpoint: bool = False) -> Callable[[int], nn.Module]:
    """What makes `model` for images of `size` px and a number of classes, as the benchmark trains it."""
    made = partial(getattr(models, model), checkpoint=checkpoint)
    return partial(made, size=size) if model.startswith("vit") else partial(made, zero_init_residual=True)


def sgd(parameters: Iterable[nn.Parameter], lr: float, fused: bool) -> torch.optim.SGD:
    """The recipe's optimizer."""
    every = list(parameters)
    groups = [
        {"params": [p for p in every if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in every if p.ndim == 1], "weight_decay": 0.0},  # BatchNorm, biases
    ]
    return torch.optim.SGD(groups, lr=lr, momentum=MOMENTUM, fused=fused)


def share(step: int, total: int) -> float:
    """Learning rate of optimizer step `step`, from 0, of `total`, as a share of the peak: linear warm-up, then a half
    cosine. Steps beyond the last, where the benchmark's warm-up was extended, keep its rate: at 0 they would train
    nothing.
    """
    warm = max(1, round(WARM_UP * total))
    step = min(step, total - 1)
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (total - warm))


class Trainer:
    """A prepared model, optimizer and schedule over `total` optimizer steps on `devices` (default: the session's)."""

    def __init__(
        self,
        session: Session,
        options: Options,
        dataset: ImageDataset,
        loader: Any,
        total: int,
        devices: int | None = None,
    ) -> None:
        offers = session.backend.capabilities()
        if options.graphs:
            offers.require("train.graphs")
            if session.world_size > 1:
                raise ArgumentError(f"--cuda-graphs is for one process; this run has {session.world_size} ranks")
        module = build(options.model, dataset.size, options.checkpoint)(dataset.num_classes)
        self.parameters = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        self.devices = session.world_size if devices is None else devices
        scaled = LR_PER_IMAGE * options.batch * session.accumulate * self.devices
        self.lr = scaled if options.lr is None else options.lr
        fused = offers.offers("train.fused_optimizer")
        optimizer = sgd(module.parameters(), self.lr, fused)
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(share, total=total))
        self.model, self._optimizer = session.prepare(module, optimizer, compile=options.compile)
        if options.graphs:
            sample = torch.zeros(options.batch, 3, dataset.size, dataset.size, device=session.device)
            self.model = session.backend.device.graphed(self.model, sample, session.backend.precision.autocast_dtype)
        weight = next(p for p in module.parameters() if p.ndim == 4 and p.shape[2] > 1)
        last = weight.is_contiguous(memory_format=torch.channels_last)
        cell = offers.get("prepare.channels_last")
        free = cell is not None and cell.support is Support.EMULATED  # strides say nothing there
        # How the step ran, beside the numerics: neither changes what is trained.
        self.conditions = {
            "execution": "torch.compile" if options.compile else "graphs" if options.graphs else "eager",
            "memory_format": "the compiler's choice" if free else "channels_last" if last else "contiguous",
            "optimizer_kernels": "fused" if fused else "torch's default",
        }
        if options.checkpoint:
            self.conditions["activations"] = "recomputed in backward"
        self._session = session
        self._loader = loader
        self._kept: Any = None  # a batch for `window`

    @property
    def recipe(self) -> str:
        """The optimizer and its settings, in words."""
        return (
            f"SGD, momentum {MOMENTUM:g}, weight decay 1/{round(1 / WEIGHT_DECAY)} not on BatchNorm and bias, "
            f"label smoothing {LABEL_SMOOTHING:g}, peak LR {self.lr:g}, warm-up {WARM_UP:.0%}, cosine"
        )

    def course(self) -> tuple[Course, int | None]:
        """Train one optimizer step more: the course of its memory, and the peak as the device has it, in bytes."""
        session = self._session
        windows = self.windows(session.meter())
        models, optimizers = [session.unwrap(self.model)], [self._optimizer]
        with (
            session.backend.memory.track() as tracked,
            Recorder(session.backend.device.type, models, optimizers) as recorder,
        ):
            next(windows)
        windows.close()
        return recorder.course(), tracked.peak

    def window(self, backward: Callable[[torch.Tensor], None]) -> None:
        """Train one optimizer step on one batch, the same each time, with `backward` in the session's place."""
        session = self._session
        if self._kept is None:
            self._kept = next(iter(self._loader))
        self.model.train()
        for x, y in session.batches([self._kept] * session.accumulate, prefetch=1):
            with session.autocast():
                logits = self.model(x)
            backward(cross_entropy(logits.float(), y, label_smoothing=LABEL_SMOOTHING))
            session.step(self._optimizer)

    def windows(self, meter: Meter, phases: Phases | None = None, loader: Any = None) -> Generator[int, None, None]:
        """Train without end; after each optimizer step give the images that this rank trained on in it.

        `phases` are told where the phases of a step end; `loader` takes the place of the trainer's own.
        """
        session = self._session
        phases = Phases(session.backend.device) if phases is None else phases
        self.model.train()
        for epoch in itertools.count():
            images = 0
            phases.begin()
            for x, y in session.batches(self._loader if loader is None else loader, epoch=epoch):
                phases.end("data")
                with session.autocast():
                    logits = self.model(x)
                loss = cross_entropy(logits.float(), y, label_smoothing=LABEL_SMOOTHING)
                phases.end("forward")
                session.backward(loss)
                phases.end("backward")
                meter.add(loss=loss.detach())
                images += len(y)
                boundary = session.step(self._optimizer, scheduler=self._scheduler).boundary
                phases.end("update")
                if boundary:
                    yield images
                    images = 0
                    phases.begin()


def evaluate(session: Session, model: nn.Module, dataset: ImageDataset, batch: int, workers: int) -> Evaluated:
    """The share of held-out images classified right; each counts once, on any number of ranks.

    Raises `DataError` where a number of images that is not the set's was counted.
    """
    sampler = session.sampler(dataset, shuffle=False)
    training = model.training
    model.eval()
    meter = session.meter()
    seen = 0
    with torch.no_grad():
        for x, y in session.batches(DataLoader(dataset, batch, sampler=sampler, num_workers=workers), train=False):
            with session.autocast():
                logits = model(x)
            meter.add(weight=len(y), accuracy=(logits.argmax(1) == y).float().mean())
            seen += len(y)
    model.train(training)
    images = sum(session.backend.collective.all_gather_object(seen))
    check_counted(images, len(dataset))
    return Evaluated(meter.read()["accuracy"], images)


def workload(trainer: Trainer, dataset: ImageDataset, options: Options) -> records.Workload:
    """What was trained, for the record."""
    data = dataset.name
    if data == "folder":  # another folder is other data
        folder = Path(options.data.partition(":")[2]).resolve().name
        data = f"folder {folder} ({dataset.num_classes} classes, {len(dataset)} images)"
    return records.Workload(
        model=options.model,
        parameters=records.Figure(trainer.parameters, "parameters"),
        data=data,
        delivery=SYNTHETIC if dataset.name == "synthetic" else IN_THE_LOOP,
        image_size=records.Figure(dataset.size, "px"),
        batch_per_device=records.Figure(options.batch, "images"),
        accumulate=records.Figure(options.accumulate, "micro-batches"),
        global_batch=records.Figure(options.batch * options.accumulate * trainer.devices, "images"),
        optimizer=trainer.recipe,
        seed=options.seed,
    )
