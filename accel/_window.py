"""The accumulation window: which micro-batch this is, by what the loss is divided, and whether the gradients are
still there.

Pure bookkeeping on the host; it does not communicate and touches gradients only to look whether they were lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from accel.errors import ArgumentError, WindowError


def checked_accumulate(value: object) -> int:
    """`value` if it is a window size; raises `ArgumentError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(
            f"accumulate={value!r}: expected an integer from 1, the micro-batches of one optimizer step"
        )
    return value


class Window:
    """State of the current window. `index` counts its finished micro-batches."""

    __slots__ = (
        "_accumulate",
        "_counted",
        "_final",
        "_mark",
        "_optimizers",
        "backwards",
        "index",
        "last",
        "weight",
        "weighted",
    )

    def __init__(self, accumulate: int) -> None:
        self._accumulate = checked_accumulate(accumulate)
        self.reset()

    def reset(self) -> None:
        self.index = 0
        self._final = False  # the loader said that no micro-batch follows
        self.last = self._accumulate == 1  # the current micro-batch ends the window
        self.backwards = 0
        self.weight: Any = 0.0  # sum of weights so far: float, or a tensor on the device
        self.weighted: bool | None = None  # None until the first backward of the window
        self._counted = -1  # the micro-batch whose weight is in the sum: several losses of one batch count it once
        self._mark: tuple[torch.Tensor, torch.Tensor, int] | None = None
        self._optimizers: tuple[Any, ...] | None = None

    @property
    def accumulate(self) -> int:
        return self._accumulate

    @accumulate.setter
    def accumulate(self, value: int) -> None:
        value = checked_accumulate(value)
        if self.index or self.backwards:
            raise WindowError(
                f"accumulate={value}: a window is open ({self.index} micro-batches done); set it between windows"
            )
        self._accumulate = value
        self.last = self._final or value == 1

    @property
    def open(self) -> bool:
        return self.index > 0 or self.backwards > 0

    def begin(self, final: bool) -> None:
        """A micro-batch starts; `final` when no further one follows in this epoch."""
        self._final = final
        self.last = final or self.index + 1 >= self._accumulate

    def loss_factor(self, weight: Any) -> Any:
        """What the loss of this micro-batch is multiplied by before backward (float or tensor); None means 1."""
        weighted = weight is not None
        if self.weighted is None:
            self.weighted = weighted
        elif self.weighted != weighted:
            raise WindowError(
                "backward() was called with and without weight in one window; give a weight always or never"
            )
        if not weighted:
            return None if self._accumulate == 1 else 1.0 / self._accumulate
        if isinstance(weight, torch.Tensor):
            if weight.numel() != 1:
                raise ArgumentError(f"backward(weight=tensor of shape {tuple(weight.shape)}): expected one number")
            weight = weight.detach().reshape(())
        elif (
            isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight) or weight < 0
        ):
            raise ArgumentError(
                f"backward(weight={weight!r}): expected a finite number from 0, such as the samples of the batch"
            )
        if self._counted != self.index:
            self._counted = self.index
            self.weight = self.weight + weight
        return weight

    def rescale(self) -> float | None:
        """Factor that turns the sum over an incomplete window into a mean over its real size; None means 1 (T21)."""
        return None if self.weighted or self.index == self._accumulate else self._accumulate / self.index

    def defer(self, optimizers: tuple[Any, ...]) -> None:
        """A micro-batch ended that does not end the window."""
        self.end_micro_batch(optimizers)
        self.begin(final=False)

    def end_micro_batch(self, optimizers: tuple[Any, ...]) -> None:
        """Count a micro-batch. Raises `WindowError` for other optimizers than earlier in the window, and for lost
        gradients.
        """
        if self._optimizers is not None and set(map(id, self._optimizers)) != set(map(id, optimizers)):
            raise WindowError(
                "step() got other optimizers than earlier in this window; alternating optimizers need accumulate=1"
            )
        self._optimizers = optimizers
        self.check_gradients()
        self.index += 1

    def mark_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Remember one gradient after a backward, to notice when it is lost before the window ends."""
        for parameter in parameters:
            if parameter.grad is not None:
                self._mark = parameter, parameter.grad, parameter.grad._version
                return

    def check_gradients(self) -> None:
        """Raise when the gradient remembered is gone: a `zero_grad` left in the loop by habit."""
        if self._mark is not None:
            parameter, gradient, version = self._mark
            if parameter.grad is not gradient or gradient._version != version:
                raise WindowError(VANISHED)


VANISHED = (
    "the gradients of this window's earlier backward() are gone: a zero_grad() (or a change of .grad) is left in the "
    "loop. Session.step zeroes the gradients itself at the end of each window; remove the call"
)


def parameters_of(optimizers: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Every parameter of the optimizers, as their groups hold it."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
