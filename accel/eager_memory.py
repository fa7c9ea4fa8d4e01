"""`EagerMemory`: figures of torch's caching allocators, over `torch.get_device_module(type)`.

A vendor's `memory.py` derives from it and holds only what its hardware makes different: the words of its out-of-memory
errors, and figures that its module lacks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from accel.eager import EagerDevice
from accel.errors import ArgumentError
from accel.memory import Memory, MemoryStats

HISTORY = 100_000  # allocations and frees that a recording keeps, the latest; torch's own default has no end


class EagerMemory(Memory):
    """Live, reserved and peak bytes of a device's caching allocator, its history, and a limit for this process."""

    def __init__(self, device: EagerDevice) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device.type)

    def stats(self, index: int | None = None) -> MemoryStats:
        index = self._device.checked(index)
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
        self._module.reset_peak_memory_stats(self._device.current())  # live bytes stay counted

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
