"""Where a lazy device's graph is cut, and what is said of graphs that are compiled again and again.

A cut runs what was recorded: at the end of each window, and after each micro-batch inside one, which bounds the graph.
Each new graph is compiled once. That is normal in the first windows (the optimizer's state appears) and for a new batch
shape; a graph that is new in every step is a fault of the loop that costs more than the step itself (T59).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from accel._loader import moved
from accel.device import Device

log = logging.getLogger("accel")

_SOME = 2  # recompiling windows that pass: reading a value between two steps makes one further graph, once
_SHAPES = 4  # late batch shapes that pass, such as the short last batch of each loader
ADVICE = (
    "look for a value read inside the loop (.item(), print, an `if` on a tensor), a number that changes the "
    "computation, or a shape that changes"
)


class Cuts:
    """Cuts the graph of one session's lazy device and counts what was compiled at its windows' ends."""

    def __init__(self, device: Device, run: Callable[[], None]) -> None:
        self._device = device
        self._run = run  # cuts and runs the graph of a window's end, which all ranks run together
        self._settled = False  # a window has passed in which nothing was compiled
        self._seen: set[tuple[Any, ...]] = set()  # shapes and dtypes of batches
        self._new: tuple[Any, ...] | None = None  # those first seen in this window
        self._late = 0  # windows after warm-up whose graph was new although their batches were not
        self._late_shapes = 0
        self._on_host: set[str] = set()  # operations reported already

    def saw(self, batch: Any) -> None:
        """A training batch is about to be used."""
        found: list[Any] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            found.append((tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
            return tensor

        moved(batch, note)
        shapes = tuple(found)
        if shapes not in self._seen:
            self._seen.add(shapes)
            self._new = shapes

    def inside(self) -> None:
        """Cut after a micro-batch that does not end its window."""
        self._device.flush()

    def boundary(self, step: int) -> None:
        """Cut at the end of the window that is optimizer step `step`."""
        before = self._device.counters()["compiles"]
        self._run()
        compiled = self._device.counters()["compiles"] - before
        if self._settled and compiled:
            self._report(step, compiled)
        self._settled = self._settled or not compiled
        self._new = None
        for name in self._device.fallback_operations():
            if name not in self._on_host:
                self._on_host.add(name)
                log.warning(
                    "step %d: %s ran on the host, as the device lacks it; each use waits for a copy", step, name
                )

    def _report(self, step: int, compiled: int) -> None:
        total = self._device.counters()["compiles"]
        if self._new is not None:
            self._late_shapes += 1
            level = logging.WARNING if _doubled(self._late_shapes, _SHAPES) else logging.INFO
            log.log(
                level,
                "step %d: %d graph(s) compiled (%d in all) for a batch of new shape %s, shape number %d; "
                "pad or drop batches whose shape differs",
                step, compiled, total, self._new, len(self._seen),
            )  # fmt: skip
            return
        self._late += 1
        level = logging.WARNING if _doubled(self._late, _SOME) else logging.INFO
        log.log(
            level,
            "step %d: %d graph(s) compiled (%d in all) after warm-up for batches of a known shape, "
            "in %d step(s) so far; %s",
            step, compiled, total, self._late, ADVICE,
        )  # fmt: skip


def _doubled(count: int, first: int) -> bool:
    """Whether `count` is `first` times a power of two: a fault in every step must not fill the log."""
    return count >= first and count % first == 0 and (count // first).bit_count() == 1
