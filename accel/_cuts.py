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

from accel._copies import moved
from accel._reads import ReadTracer
from accel.device import Device

log = logging.getLogger("accel")

_SOME = 2  # recompiling windows that pass: reading a value between two steps makes one further graph, once
_SHAPES = 4  # late batch shapes that pass, such as the short last batch of each loader
_WARM_UP = 4  # windows after which a compilation is late, even if each one so far had its own
_WATCHED = 20  # micro-batches in which reads are looked for: asking costs some 0.1 ms
_IN_A_ROW = 3  # micro-batches with a read, one after another, that are no longer taken for a progress report
ADVICE = (
    "look for a value read inside the loop (.item(), print, an `if` on a tensor), a number that changes the "
    "computation, or a shape that changes"
)


class Cuts:
    """Cuts the graph of one session's lazy device and counts what was compiled at its windows' ends."""

    def __init__(self, device: Device, run: Callable[[], object], alone: bool) -> None:
        self._device = device
        self._run = run  # cuts and runs the graph of a window's end, which all ranks run together
        self._windows = 0
        self._settled = False  # warm-up is over: a window has passed in which nothing was compiled
        self._seen: set[tuple[Any, ...]] = set()  # shapes and dtypes of batches
        self._new: tuple[Any, ...] | None = None  # those first seen in this window
        self._late = 0  # windows after warm-up whose graph was new although their batches were not
        self._late_shapes: list[tuple[Any, ...]] = []
        # Micro-batches looked at for reads; none among several ranks, which may be threads and share the counter.
        self._watched = 0 if alone else _WATCHED
        self._reads: int | None = None  # of the device, when the current micro-batch began; None when not looked at
        self._in_a_row = 0
        self._tracer = ReadTracer(device.host_reads)
        self._on_host = device.fallback_operations()  # those of earlier sessions
        self._told: set[str] = set()  # those reported in this one

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
        self._tracer.stop()  # of a micro-batch that was left without a step
        self._reads = None
        if self._watched < _WATCHED:
            self._watched += 1
            self._reads = self._device.host_reads()
            if self._in_a_row >= _IN_A_ROW:
                self._tracer.start()

    def stepping(self, step: int) -> None:
        """The script's part of a micro-batch is over: what it read on the host cost a graph of its own and a wait."""
        self._tracer.stop()
        if self._reads is None:
            return
        self._in_a_row = self._in_a_row + 1 if self._device.host_reads() != self._reads else 0
        if self._tracer.lines:
            self._watched = _WATCHED
            log.warning(
                "step %d: a value is read on the host before step() in each micro-batch, at %s; that runs the "
                "forward as a graph of its own and waits for it: read after step(), or through session.meter()",
                step, ", ".join(self._tracer.lines),
            )  # fmt: skip

    def stop(self) -> None:
        """The session ends."""
        self._tracer.stop()

    def divert(self, run: Callable[[], None]) -> None:
        """Give the graph of each window's end to `run` from now on, instead of running it."""
        self._run = run

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
        self._windows += 1
        self._settled = self._settled or not compiled or self._windows >= _WARM_UP
        self._new = None
        for name, times in self._device.fallback_operations().items():
            if times > self._on_host.get(name, 0) and name not in self._told:
                self._told.add(name)
                log.warning(
                    "step %d: %s ran on the host, as the device lacks it; each use waits for a copy", step, name
                )

    def _report(self, step: int, compiled: int) -> None:
        total = self._device.counters()["compiles"]
        if self._new is not None:
            self._late_shapes.append(self._new)
            level = logging.WARNING if len(self._late_shapes) == _SHAPES else logging.INFO
            newest = "; ".join(map(_shown, self._late_shapes[-_SHAPES:]))
            log.log(
                level,
                "step %d: %d graph(s) compiled (%d in all) for a batch of new shape, number %d; the latest are %s. Pad "
                "batches to a few shapes: each is compiled once",
                step, compiled, total, len(self._seen), newest,
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


def _shown(shapes: tuple[Any, ...]) -> str:
    """Shapes and dtypes of a batch: "(8, 6) float32, (8, 3) float32"."""
    return ", ".join(f"{shape} {dtype}" for shape, dtype in shapes)


def _doubled(count: int, first: int) -> bool:
    """Whether `count` is `first` times a power of two: a fault in every step must not fill the log."""
    return count >= first and count % first == 0 and (count // first).bit_count() == 1
