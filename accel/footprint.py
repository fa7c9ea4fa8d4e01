"""`Recorder` and `Course`: memory over a training step, split into what it is for.

- parameters: parameters and buffers. gradients: those of parameters, as long as they live. optimizer: its state.
- activations: what forward makes, a recomputation included, the batch, and casts of parameters.
- workspace: what backward and the optimizer make for a while, such as gradients of activations.

The same recorder works on real tensors of any eager device and on fake ones, where `accel.plan` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from accel.tracking import Tracker

KINDS = ("parameters", "gradients", "optimizer", "activations", "workspace")
PHASES = ("forward", "backward", "optimizer")

Bytes = npt.NDArray[np.int64]
Rounding = Callable[[Bytes], Bytes]  # what an allocator takes for storages of these sizes


def exact(sizes: Bytes) -> Bytes:
    """Where nothing is rounded."""
    return sizes


@dataclass(frozen=True)
class Course:
    """The life of every storage of a step, in order: event i gives (above 0) or ends (below 0) a storage."""

    numbers: Bytes  # the storage of each event
    deltas: Bytes  # bytes of each event
    phases: tuple[str, ...]  # "forward", "backward" or "optimizer", of each event
    sizes: Bytes  # bytes of each storage when it was last seen
    kinds: tuple[str, ...]  # of each storage
    early: frozenset[int]  # storages that were there before the step

    def curves(self, taken: Rounding = exact) -> dict[str, Bytes]:
        """Bytes of each kind before the first event and after each event."""
        held = np.sign(self.deltas) * taken(np.abs(self.deltas))
        kinds = np.array([KINDS.index(kind) for kind in self.kinds], dtype=np.int64)
        sizes, before = taken(self.sizes), np.zeros(len(self.sizes), dtype=bool)
        before[list(self.early)] = True
        found = {}
        for place, kind in enumerate(KINDS):
            start = int(sizes[before & (kinds == place)].sum())
            moved = np.where(kinds[self.numbers] == place, held, 0) if len(self.numbers) else held
            found[kind] = np.concatenate([[start], start + np.cumsum(moved)])
        return found

    def peak(self, taken: Rounding = exact) -> int:
        """The most bytes that are live at once."""
        return int(sum(self.curves(taken).values()).max())  # type: ignore[union-attr]  # there are five kinds

    def highest(self, taken: Rounding = exact) -> dict[str, int]:
        """The most bytes of each kind, at whatever moment."""
        return {kind: int(curve.max()) for kind, curve in self.curves(taken).items()}

    def at_peak(self, taken: Rounding = exact) -> dict[str, int]:
        """Bytes of each kind at the moment when most bytes are live."""
        curves = self.curves(taken)
        moment = int(np.argmax(sum(curves.values())))
        return {kind: int(curve[moment]) for kind, curve in curves.items()}


class Recorder(Tracker):
    """While it is entered, records the course of memory over the training of `models` by `optimizers`.

    Forward, backward and the optimizer are told apart by themselves: autograd computes gradients with grad mode off,
    and a recomputation with grad mode on.
    """

    def __init__(
        self,
        device_type: str,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        fake: bool = False,
    ) -> None:
        super().__init__(device_type, fake)
        self._models = models
        self._optimizers = optimizers
        self._kinds: dict[int, str] = {}
        self._made: dict[int, str] = {}  # the phase in which a storage appeared
        self._events: list[tuple[int, int, str]] = []
        self._stepping = False
        self._handles: list[Any] = []

    def course(self) -> Course:
        """What was recorded."""
        kinds = [self._kinds.get(number) or self._by_birth(number) for number in range(len(self.sizes))]
        events = _ordered(self._events)
        return Course(
            numbers=np.array([number for number, _, _ in events], dtype=np.int64),
            deltas=np.array([size for _, size, _ in events], dtype=np.int64),
            phases=tuple(phase for _, _, phase in events),
            sizes=np.array(self.sizes, dtype=np.int64),
            kinds=tuple(kinds),
            early=frozenset(self.early),
        )

    def __enter__(self) -> Recorder:
        for model in self._models:
            self._call("parameters", self.know([*model.parameters(), *model.buffers()]))
            for parameter in model.parameters():
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._accumulated))
        for optimizer in self._optimizers:
            self._call("optimizer", self.know(_state(optimizer)))
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, exc, trace)  # type: ignore[no-untyped-call]
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._call("gradients", self.know([parameter.grad]))

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._stepping = True
        for group in optimizer.param_groups:  # DDP puts a gradient into its bucket after the hook on the parameter
            self._call("gradients", self.know([p.grad for p in group["params"] if p.grad is not None]))

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._stepping = False
        self._call("optimizer", self.know(_state(optimizer)))

    def _call(self, kind: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._kinds.setdefault(number, kind)

    def _by_birth(self, number: int) -> str:
        return "activations" if number in self.early or self._made.get(number) == "forward" else "workspace"

    def _phase(self) -> str:
        if self._stepping:
            return "optimizer"
        return "forward" if torch.is_grad_enabled() else "backward"

    def _moved(self, number: int, size: int) -> None:
        super()._moved(number, size)
        phase = self._phase()
        self._made.setdefault(number, phase)
        self._events.append((number, size, phase))


def _ordered(events: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Storages that end one after the other end in the order of their numbers: autocast drops its casts in the order of
    addresses, which would make two courses of one step different.
    """
    ordered: list[tuple[int, int, str]] = []
    for (ends, _), group in groupby(events, key=lambda event: (event[1] < 0, event[2])):
        run = list(group)
        ordered += sorted(run) if ends else run
    return ordered


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
