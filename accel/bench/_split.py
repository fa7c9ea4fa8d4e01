"""Where a step's time goes, and what it takes in energy, beside the timed steps and never inside them.

Phases are measured in the warm-up steps after the first: there each phase ends on a synchronized device, so that phases
do not overlap and a step takes longer than a timed one. A lazy device runs a step as one graph and has no phases.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from accel.records import Figure

if TYPE_CHECKING:
    from accel.bench._timing import TimedDevice
    from accel.session import Session

NAMES = ("data", "forward", "backward", "update")
STRAGGLER = 1.2  # times the median rank's work before the first collective of a step
_KEPT = 5  # steps, the last ones
_REDUCTIONS = 5


class Phases:
    """The clock of a step's phases. While `on`, `end(name)` gives the time since the last end to phase `name`."""

    def __init__(self, device: TimedDevice, clock: Callable[[], float] = time.perf_counter) -> None:
        self.on = False
        self.steps: list[dict[str, float]] = []  # seconds by phase, one a step
        self._device = device
        self._clock = clock
        self._last = 0.0

    def begin(self) -> None:
        """A step begins."""
        if self.on:
            self.steps.append(dict.fromkeys(NAMES, 0.0))
            self._device.synchronize()
            self._last = self._clock()

    def end(self, name: str) -> None:
        """A phase of a micro-batch ends; those of several add up."""
        if self.on and self.steps:
            self._device.synchronize()
            now = self._clock()
            self.steps[-1][name] += now - self._last
            self._last = now

    def medians(self) -> dict[str, float]:
        """Seconds by phase over the last steps; empty where no step was measured."""
        kept = self.steps[-_KEPT:]
        return {name: statistics.median(step[name] for step in kept) for name in NAMES} if kept else {}


def figures(session: Session, phases: Phases, gradient_elements: int) -> tuple[dict[str, Figure], list[str]]:
    """`<phase>_time` and `reduce_time`, and a warning for each straggler; every rank must call it.

    Phases are the median rank's. `gradient_elements`: how many fp32 numbers the reduction of a step sums.
    """
    ranks = session.backend.collective.all_gather_object(phases.medians())
    reduction = _reduction(session, gradient_elements)
    reason = _why_not(session) if not all(ranks) else None
    found = {
        f"{name}_time": Figure(None if reason else statistics.median(rank[name] for rank in ranks), "s", reason=reason)
        for name in NAMES
    }
    return {**found, "reduce_time": reduction}, [] if reason else _stragglers(ranks)


def _why_not(session: Session) -> str:
    if session.backend.kind == "lazy":
        return "a lazy device runs the step as one graph"
    return "no warm-up step after the first, in which phases are measured; run with --warmup 2 or more"


def _stragglers(ranks: list[dict[str, float]]) -> list[str]:
    """Only what comes before the first collective: there a rank does not wait for others."""
    lines = []
    for name in ("data", "forward"):
        usual = statistics.median(rank[name] for rank in ranks)
        step = statistics.median(sum(rank.values()) for rank in ranks)
        for index, rank in enumerate(ranks):
            behind = rank[name] - usual
            if rank[name] > STRAGGLER * usual and behind > 0.02 * step:
                lines.append(
                    f"rank {index} is a straggler: {name} takes it {rank[name] * 1e3:.3g} ms a step, the median rank "
                    f"{usual * 1e3:.3g} ms; the others wait for it in backward"
                )
    return lines


def _reduction(session: Session, elements: int) -> Figure:
    """The sum of a step's gradients alone, on the rank that waits least; in a step part of it is behind backward."""
    if session.world_size == 1:
        return Figure(None, "s", reason="one rank reduces nothing")
    if session.backend.kind == "lazy":
        return Figure(None, "s", reason="the reduction is inside the step's graph")
    buffer = torch.zeros(elements, device=session.device)
    times = []
    for _ in range(_REDUCTIONS):
        session.barrier()
        session.backend.device.synchronize()
        start = time.perf_counter()
        session.backend.collective.all_reduce(buffer)
        session.backend.device.synchronize()
        times.append(time.perf_counter() - start)
    fastest = session.backend.collective.all_gather_object(statistics.median(times))
    return Figure(min(fastest), "s")


class EnergyMeter:
    """Joules that the devices of all ranks take between `start` and `stop`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._start: float | None = None
        self._lost = False  # something was to be left out and could not be

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._start is None:
            self._start = self._session.backend.device.energy()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is done inside does not count."""
        before = self._session.backend.device.energy()
        yield
        after = self._session.backend.device.energy()
        if self._start is not None:
            self._lost = self._lost or before is None or after is None or after < before
            self._start += 0.0 if before is None or after is None else after - before

    def stop(self, images: int) -> Figure:
        """Energy an image, for `images` on this rank; every rank must call it."""
        device = self._session.backend.device
        end = device.energy()
        # A counter that wrapped meanwhile tells nothing.
        lost = self._lost or end is None or self._start is None or end < self._start
        used = None if lost or end is None or self._start is None else end - self._start
        # Ranks that share a device, as on a host's CPUs, read one counter: it counts once.
        shared = device.identity() is None and self._session.local_rank > 0
        ranks = self._session.backend.collective.all_gather_object([0.0 if shared else used, images])
        joules = [used for used, _ in ranks]
        if any(one is None for one in joules):
            cell = self._session.backend.capabilities().get("device.energy")
            return Figure(None, "J/image", reason=cell.why if cell else "the backend does not tell")
        return Figure(sum(joules) / sum(images for _, images in ranks), "J/image")


class DataWaits:
    """The share of the timed steps that ranks spent waiting for their loader."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._on = False

    def start(self) -> None:
        """Begin, unless it has begun."""
        if not self._on:
            self._on = True
            self._session.lap()

    def stop(self, seconds: float) -> Figure:
        """The share on the rank that waited most, of `seconds` that this rank's steps took; every rank must call it."""
        waited = self._session.lap().data_seconds
        shares = self._session.backend.collective.all_gather_object(min(1.0, waited / seconds))
        return Figure(max(shares), "fraction")
