"""`EagerMemory`: figures of torch's caching allocators, over `torch.get_device_module(type)`.

A vendor's `memory.py` derives from it and holds only what its hardware makes different: the words of its out-of-memory
errors, and figures that its module lacks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from accel.allocator import Allocator
from accel.eager import EagerDevice
from accel.errors import ArgumentError
from accel.memory import Memory, MemoryStats, Tracked

# kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp, whose rounding the caching allocators of other devices took over.
TORCH = Allocator("torch", granule=512, caches=True)
HISTORY = 100_000  # allocations and frees that a recording keeps, the latest; torch's own default has no end


class EagerMemory(Memory):
    """Live, reserved and peak bytes of a device's caching allocator, its history, and a limit for this process."""

    allocator = TORCH
    sources: ClassVar[Mapping[str, str]] = {
        "allocated": "memory_stats: allocated_bytes.all.current of torch's caching allocator",
        "reserved": "memory_stats: reserved_bytes.all.current",
        "peak_allocated": "memory_stats: allocated_bytes.all.peak",
        "peak_reserved": "memory_stats: reserved_bytes.all.peak",
        "total": "mem_get_info of the driver",
        "free": "mem_get_info of the driver; what the allocator caches is not in it",
        "track.peak": "the allocator's peak, which starts anew with the block",
        "track.change": "allocated at both ends",
    }

    def __init__(self, device: EagerDevice) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device.type)
        self._earlier: dict[int, _Peaks] = {}  # of each device: what the user's peaks were before a block reset them
        self._blocks: dict[int, list[_Peaks]] = {}  # of each device: what the open blocks' peaks were before a reset

    def stats(self, index: int | None = None) -> MemoryStats:
        index = self._device.checked(index)
        found = self._native(index)
        earlier = self._earlier.get(index)
        if earlier is None:
            return found
        return replace(
            found,
            peak_allocated=max(earlier.allocated, found.peak_allocated or 0),
            peak_reserved=max(earlier.reserved, found.peak_reserved or 0),
        )

    def _native(self, index: int) -> MemoryStats:
        """The figures as torch's allocator has them."""
        free, total = self._module.mem_get_info(index)
        found = self._module.memory_stats(index)  # empty until the first allocation: then nothing is held
        return MemoryStats(
            allocated=int(found.get("allocated_bytes.all.current", 0)),
            reserved=int(found.get("reserved_bytes.all.current", 0)),
            peak_allocated=int(found.get("allocated_bytes.all.peak", 0)),
            peak_reserved=int(found.get("reserved_bytes.all.peak", 0)),
            total=int(total),
            free=int(free),
        )

    def reset_peak(self) -> None:
        index = self._device.current()
        self._start_anew(index)
        self._earlier.pop(index, None)

    def _start_anew(self, index: int) -> None:
        """Reset the allocator's peaks; whoever measures by them keeps what they were."""
        found = self._native(index)
        for peaks in (self._earlier.setdefault(index, _Peaks()), *self._blocks.get(index, [])):
            peaks.raise_to(found)
        self._module.reset_peak_memory_stats(index)  # live bytes stay counted

    @contextlib.contextmanager
    def track(self, index: int | None = None) -> Iterator[Tracked]:
        index = self._device.checked(index)
        found, mine = Tracked(), _Peaks()
        self._start_anew(index)
        start = self._native(index)
        self._blocks.setdefault(index, []).append(mine)
        try:
            yield found
        finally:
            self._blocks[index].remove(mine)
            end = self._native(index)
            mine.raise_to(end)
            found.settle(start, end, {"allocated": mine.allocated, "reserved": mine.reserved})

    def empty_cache(self) -> None:
        self._module.empty_cache()

    def snapshot(self, path: str | Path) -> None:
        file = Path(path)
        if not file.parent.is_dir():
            raise ArgumentError(f"memory.snapshot({str(path)!r}): its folder does not exist; make it first")
        self._dump(file)

    def _dump(self, file: Path) -> None:
        self._module.memory._dump_snapshot(os.fspath(file))  # torch's documented way: docs "Understanding memory usage"

    def record_history(self, enabled: bool = True) -> None:
        if enabled:
            self._module.memory._record_memory_history(stacks="python", max_entries=HISTORY)
        else:
            self._module.memory._record_memory_history(enabled=None)

    def limit(self, fraction: float, index: int | None = None) -> None:
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
            raise ArgumentError(f"memory.limit({fraction!r}): expected a share of the device's memory, above 0 up to 1")
        self._module.set_per_process_memory_fraction(float(fraction), self._device.checked(index))


class _Peaks:
    """The highest figures that an allocator had before its peaks were reset."""

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved = 0

    def raise_to(self, found: MemoryStats) -> None:
        self.allocated = max(self.allocated, found.peak_allocated or 0)
        self.reserved = max(self.reserved, found.peak_reserved or 0)
