"""`replay`: a course of memory through torch's caching allocator, which takes more than tensors have.

The rules and constants are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.9 to 2.13), which other devices' caching
allocators took over: requests up to 1 MiB come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, larger
ones from segments of their own, rounded to 2 MiB; the smallest free block that is large enough is taken; a block of the
large pool is cut only where more than 1 MiB would be left. One stream, default settings.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from accel.allocator import Allocator
from accel.footprint import Course

MIB = 2**20
SMALL = MIB  # kSmallSize
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB  # kSmallBuffer, kLargeBuffer
OWN_SEGMENT, ROUNDED = 10 * MIB, 2 * MIB  # kMinLargeAlloc, kRoundLarge
STEPS = 2  # how often a step is replayed: in the second the optimizer's state lies where the first left it


class Peaks(NamedTuple):
    """The highest bytes in blocks that are in use, and in segments."""

    allocated: int
    reserved: int


def replay(course: Course, allocator: Allocator, limit: int | None = None) -> Peaks | None:
    """The peaks of the steady step; None where it does not fit into `limit` bytes of segments.

    What was there before the step is placed first, in the order in which it was made; the optimizer's state is placed
    at the end of a first backward.
    """
    heap = _Heap(limit)
    taken = allocator.taken(np.abs(course.deltas)).tolist()
    sizes = allocator.taken(course.sizes).tolist()
    numbers, signs = course.numbers.tolist(), np.sign(course.deltas).tolist()
    early = [number for number in sorted(course.early) if sizes[number]]
    state = [number for number in early if course.kinds[number] == "optimizer"]
    backward = [index for index, phase in enumerate(course.phases) if phase == "backward"]
    made = backward[-1] + 1 if backward else 0  # the optimizer makes its state while the gradients of step 1 live
    blocks: dict[int, _Block] = {}

    def place(chosen: list[int]) -> None:
        blocks.update((number, heap.take(sizes[number])) for number in chosen if number not in blocks)

    try:
        place([number for number in early if course.kinds[number] != "optimizer"])
        for _ in range(STEPS):
            for index, (number, size, sign) in enumerate(zip(numbers, taken, signs, strict=True)):
                if index == made:
                    place(state)
                if sign and number in blocks:  # its end, or a new size: a storage that grows is made anew
                    heap.give(blocks.pop(number))
                if sign > 0:
                    blocks[number] = heap.take(size)
            place(state)
            for number in [number for number in blocks if number not in course.early]:
                heap.give(blocks.pop(number))  # what outlives a step gives way in the next
            place(early)
    except _FullError:
        return None
    return Peaks(heap.peak_allocated, heap.peak_reserved)


class _FullError(Exception):
    """No segment can be had."""


class _Block:
    """A part of a segment; neighbours are linked."""

    __slots__ = ("after", "before", "place", "pool", "size")

    def __init__(self, pool: int, size: int, place: int) -> None:
        self.pool, self.size, self.place = pool, size, place
        self.before: _Block | None = None
        self.after: _Block | None = None


class _Heap:
    """Segments and their blocks. Free blocks are kept in order of size, then of place."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._at: dict[int, _Block] = {}  # free blocks by place
        self._next = 0  # place of the next segment
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0

    def take(self, size: int) -> _Block:
        pool = 0 if size <= SMALL else 1
        block = self._fitting(pool, size) or self._segment(pool, size)
        rest = block.size - size
        if rest > SMALL or (pool == 0 and rest > 0):
            other = _Block(pool, rest, block.place + size)
            other.before, other.after = block, block.after
            if block.after is not None:
                block.after.before = other
            block.after, block.size = other, size
            self._keep(other)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def give(self, block: _Block) -> None:
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.place in self._at:
            self._forget(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.place in self._at:
            self._forget(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        self._keep(block)

    def _fitting(self, pool: int, size: int) -> _Block | None:
        free = self._free[pool]
        index = bisect_left(free, (size, -1))
        if index == len(free):
            return None
        block = self._at[free[index][1]]
        self._forget(block)
        return block

    def _segment(self, pool: int, size: int) -> _Block:
        large = LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // ROUNDED) * ROUNDED
        whole = large if pool else SMALL_SEGMENT
        if self._limit is not None and self.reserved + whole > self._limit:
            for block in list(self._unused()):  # as the allocator does before it gives up
                self._forget(block)
                self.reserved -= block.size
            if self.reserved + whole > self._limit:
                raise _FullError
        self.reserved += whole
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = _Block(pool, whole, self._next)
        self._next += whole
        return block

    def _unused(self) -> Iterator[_Block]:
        """Free blocks that are whole segments."""
        return (block for block in self._at.values() if block.before is None and block.after is None)

    def _keep(self, block: _Block) -> None:
        insort(self._free[block.pool], (block.size, block.place))
        self._at[block.place] = block

    def _forget(self, block: _Block) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, (block.size, block.place))]
        del self._at[block.place]
