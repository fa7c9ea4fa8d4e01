"""What `accel bench resnet50` can be asked for, checked before anything runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from accel.errors import ArgumentError

MODELS = ("resnet50", "resnet18", "vit_b_16")


@dataclass(frozen=True)
class Options:
    """What to run. Raises `ArgumentError` for a value that cannot be used."""

    model: str = "resnet50"
    data: str = "digits"  # or "synthetic", "folder:PATH"
    size: int | None = None  # px; None: 32 for digits, 224 otherwise
    batch: int = 32  # images a micro-batch on one device
    accumulate: int = 1  # micro-batches an optimizer step
    precision: str = "fp32"
    steps: int | None = None  # timed optimizer steps in each repeat; None: 10, or what `epochs` gives
    epochs: int | None = None  # passes over the data, warm-up included, instead of `steps`
    warmup: int = 3  # untimed optimizer steps; extended while something compiles
    repeats: int = 3
    workers: int = 0  # data loading processes a rank
    pin: bool | None = None  # batches in page-locked memory; None: where the backend has it
    tune_input: bool = False  # try workers and pinning after the run
    lr: float | None = None  # peak of the schedule; None: 0.001 an image of an optimizer step
    seed: int = 0
    evaluate: bool = False  # accuracy on held-out data after the run
    target: float | None = None  # accuracy to be reached; held-out data is evaluated after each epoch
    compile: bool = False  # torch.compile
    checkpoint: bool = False  # recompute activations in backward
    graphs: bool = False  # forward and backward recorded once and replayed (CUDA graphs)

    def __post_init__(self) -> None:
        least = {"workers": 0, "seed": 0}
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, int) and not isinstance(value, bool) and value < least.get(option.name, 1):
                raise ArgumentError(f"{option.name} is {value}; expected at least {least.get(option.name, 1)}")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise ArgumentError(f"lr is {self.lr}; expected a positive number")
        if self.model not in MODELS:
            raise ArgumentError(f"model is {self.model!r}; expected one of {', '.join(MODELS)}")
        if self.steps is not None and self.epochs is not None:
            raise ArgumentError(f"steps is {self.steps} and epochs is {self.epochs}; give one of the two")
        if self.target is not None and not 0 < self.target <= 1:
            raise ArgumentError(f"target is {self.target}; expected an accuracy above 0 and up to 1, such as 0.759")
        if self.target is not None and self.epochs is None and self.data != "synthetic":
            raise ArgumentError(f"target is {self.target}, but not for how long to train at most; add --epochs")
        if self.graphs and (self.compile or self.accumulate > 1):
            raise ArgumentError(
                "graphs are recorded for whole, uncompiled steps; give --cuda-graphs without --compile and --accumulate"
            )
        if self.data == "synthetic" and (self.epochs is not None or self.evaluate or self.target is not None):
            raise ArgumentError(
                "synthetic data has no epochs and nothing to evaluate; use --data digits or folder:PATH"
            )


def benchmark(model: str) -> str:
    """The benchmark that trains `model`: `accel bench NAME`."""
    return "resnet50" if model.startswith("resnet") else model
