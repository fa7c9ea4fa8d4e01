"""`plan`: what a training step takes of a chip's memory, and the largest batch that fits.

The step is traced at two batches. Where every storage grows by the same amount an image, as it does unless two
dimensions hang on the batch, the course at any batch follows from the two, and the search is exact without a further
trace; the answer is traced once more to make sure. Elsewhere every candidate is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import nn

from accel import chips
from accel._search import largest
from accel.allocator import Allocator
from accel.errors import ArgumentError
from accel.footprint import Course
from accel.plan._allocator import chosen
from accel.plan._caching import replay
from accel.plan._trace import Loss, MakeOptimizer, trace

# Share of a chip's memory that a step cannot have: the driver's context, libraries' workspaces (cuBLAS takes 32 MiB on
# Hopper, cuDNN what its algorithm wants), communication buffers and what the allocator cannot join. An assumption.
HEADROOM = 0.1
MOST = 2**20


@dataclass(frozen=True)
class Plan:
    """Memory of one device for a training step, in bytes as its allocator takes them; nothing of it was measured."""

    batch: int  # of one device
    accumulate: int
    devices: int
    precision: str
    allocator: Allocator
    parameters: int  # with buffers
    gradients: int  # between devices DDP's buckets, and what lies beside them
    optimizer: int  # its state
    activations: int  # the most that forward keeps at once: with the batch, and casts of parameters
    workspace: int  # the most that backward and the optimizer make for a while
    peak: int  # the most that is live at once
    peak_allocated: int  # the same as the allocator counts it: a block may be larger than what was asked for
    peak_reserved: int | None  # the most that a caching allocator holds; None where there is none
    at_peak: Mapping[str, int]  # of what it consists, by the kinds of `accel.footprint.KINDS`
    whole_batch_peak: int  # of one micro-batch of `batch * accumulate`: what accumulation avoids
    chip: str | None
    capacity: int | None  # bytes of the device; None where no chip and no memory was given
    headroom: float
    largest_batch: int | None  # None where there is no capacity, or not even 1 fits
    course: Course

    @property
    def usable(self) -> int | None:
        """Bytes of the capacity that a step may take."""
        return None if self.capacity is None else int(self.capacity * (1 - self.headroom))

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into what is usable, as the allocator cuts it; None where there is no capacity."""
        return None if self.usable is None else _fits(self.course, self.allocator, self.usable)

    @property
    def saved_by_accumulation(self) -> int:
        """Bytes of the peak that `accumulate` micro-batches save against one of the same global batch."""
        return self.whole_batch_peak - self.peak


def plan(
    model: nn.Module | Callable[[], nn.Module],
    loss: Loss,
    *,
    batch: int,
    optimizer: MakeOptimizer,
    precision: str = "fp32",
    accumulate: int = 1,
    devices: int = 1,
    checkpoint: Sequence[str] = (),
    chip: str | None = None,
    memory: int | None = None,
    allocator: str | Allocator | None = None,
    headroom: float = HEADROOM,
) -> Plan:
    """Plan the training step of `model`: a module, which stays as it is, or a function that makes one.

    loss: `loss(model, batch)` makes a batch of `batch` inputs, calls the model on it and returns the loss, a tensor of
    one element. The model's forward runs under the autocast of `precision`, the rest as it is written.
    optimizer: makes the optimizer from the parameters, as `lambda params: torch.optim.AdamW(params, fused=True)`.
    checkpoint: names of submodules whose activations are recomputed, as `accel.checkpoint` does.
    devices: how many train together, each on `batch`; above 1 gradients lie in the buckets that DDP keeps.
    chip: a name of `accel.chips`; memory: bytes, instead of a chip; allocator: the name of a backend that has one, such
    as "cuda" or "npu", or "exact", or a backend's `memory.allocator`; else the chip's. headroom: share of the memory
    that the step cannot have.

    The figures are of eager execution on one of the devices, in a step after the second. A compiler that fuses
    operations keeps less. Raises `ModelError` for a model without a parameter to train, `ArgumentError` for anything
    else that cannot be planned, with the nearest names for a chip that is not in the table.
    """
    found = None if chip is None else chips.get(chip)
    if chip is not None and memory is not None:
        raise ArgumentError(f"plan(chip={chip!r}, memory={memory!r}): give one of the two")
    if isinstance(headroom, bool) or not isinstance(headroom, (int, float)) or not 0 <= headroom < 1:
        raise ArgumentError(f"plan(headroom={headroom!r}): expected a share from 0, below 1")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 1):
        raise ArgumentError(f"plan(memory={memory!r}): expected bytes, an integer from 1")
    if found is not None and found.memory is None:
        raise ArgumentError(f"plan(chip={chip!r}): no source gives its memory; give memory= instead")
    capacity = memory if found is None or found.memory is None else int(found.memory.plain / found.devices_per_chip)
    used = chosen(allocator, found)

    def traced(size: int, micro_batches: int) -> Course:
        return trace(
            model,
            loss,
            size,
            optimizer=optimizer,
            precision=precision,
            accumulate=micro_batches,
            checkpoint=checkpoint,
            allocator=used,
            devices=devices,
        )

    family = _Family(lambda size: traced(size, accumulate), used, batch)
    course = family.at(batch)
    highest = course.highest(used.taken)
    replayed = replay(course, used) if used.caches else None
    whole = course.peak(used.taken)
    if accumulate > 1:
        whole = traced(batch * accumulate, 1).peak(used.taken)
    result = Plan(
        batch=batch,
        accumulate=accumulate,
        devices=devices,
        precision=precision,
        allocator=used,
        **highest,
        peak=course.peak(used.taken),
        peak_allocated=course.peak(used.taken) if replayed is None else replayed.allocated,
        peak_reserved=None if replayed is None else replayed.reserved,
        at_peak=course.at_peak(used.taken),
        whole_batch_peak=whole,
        chip=None if found is None else found.name,
        capacity=capacity,
        headroom=headroom,
        largest_batch=None,
        course=course,
    )
    limit = result.usable
    return result if limit is None else replace(result, largest_batch=family.largest(limit))


class _Growth(NamedTuple):
    """A course whose bytes grow by the same amount an image."""

    first: Course
    batch: int
    deltas: np.ndarray  # bytes an image of each event
    sizes: np.ndarray  # of each storage

    def at(self, batch: int) -> Course:
        more = batch - self.batch
        return replace(
            self.first, deltas=self.first.deltas + more * self.deltas, sizes=self.first.sizes + more * self.sizes
        )


class _Family:
    """The courses of one step at every batch."""

    def __init__(self, traced: Callable[[int], Course], allocator: Allocator, batch: int) -> None:
        self._traced = traced
        self._allocator = allocator
        self._batch = batch
        self._known: dict[int, Course] = {}

    def at(self, batch: int) -> Course:
        """The course at `batch`, traced."""
        if batch not in self._known:
            self._known[batch] = self._traced(batch)
        return self._known[batch]

    def largest(self, limit: int) -> int | None:
        """The largest batch that fits into `limit` bytes; None where not even 1 does."""

        def traced(batch: int) -> bool:
            return _fits(self.at(batch), self._allocator, limit)

        growth = self._growth()
        if growth is not None:
            by_growth = growth

            taken = self._allocator.taken

            def foretold(batch: int) -> bool:
                return _fits(by_growth.at(batch), self._allocator, limit)

            # What is live is quick to foretell and bounds what an allocator makes of it, which is a little less.
            bound = largest(lambda batch: by_growth.at(batch).peak(taken) <= limit, self._batch, most=MOST).good
            answer = None if bound is None else largest(foretold, max(1, bound - bound // 32), most=bound).good
            checked = answer or self._batch
            if self.at(checked).peak(taken) == by_growth.at(checked).peak(taken):
                return answer
        return largest(traced, self._batch, most=MOST).good

    def _growth(self) -> _Growth | None:
        """None where the two courses differ in more than sizes."""
        one, other = self.at(self._batch), self.at(2 * self._batch)
        same = (
            np.array_equal(one.numbers, other.numbers)
            and np.array_equal(np.sign(one.deltas), np.sign(other.deltas))
            and (one.kinds, one.early) == (other.kinds, other.early)
        )
        more = (other.deltas - one.deltas, other.sizes - one.sizes) if same else ()
        if not same or any((change % self._batch).any() for change in more):
            return None
        return _Growth(one, self._batch, *(change // self._batch for change in more))


def _fits(course: Course, allocator: Allocator, limit: int) -> bool:
    if course.peak(allocator.taken) > limit:
        return False
    return not allocator.caches or replay(course, allocator, limit) is not None
