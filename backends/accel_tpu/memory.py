"""Memory of a TPU as torch_tpu's allocator counts it, through `torch.accelerator`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch

from accel.errors import UnsupportedError
from accel.memory import Memory, MemoryStats
from accel_tpu.device import TpuDevice

NO_ALLOCATOR = "libtpu gives live bytes only, not what its allocator holds"
NO_PEAK_RESET = "torch.accelerator.reset_peak_memory_stats() ends the process (torch_tpu 0.2.0), so it is not called"
NO_HISTORY = "torch_tpu keeps no allocation history in torch's format"
NO_FIGURES = "torch_tpu gave no figures: it answers 0 where its client gives none (0.2.0)"


class TpuMemory(Memory):
    """Live bytes and their peak."""

    oom_texts = ("the TPU ran out of memory",)

    sources: ClassVar[Mapping[str, str]] = {
        "allocated": "torch.accelerator.memory_stats: allocated_bytes.all.current",
        "peak_allocated": "torch.accelerator.memory_stats: allocated_bytes.all.peak, of the process",
        "total": "torch.accelerator.get_memory_info",
        "free": "torch.accelerator.get_memory_info",
        "track.peak": "the process's peak, where it rose inside the block",
        "track.change": "allocated at both ends",
    }

    def __init__(self, device: TpuDevice) -> None:
        self._device = device

    def stats(self, index: int | None = None) -> MemoryStats:
        self._device.checked(index)
        bound = self._device.bound()
        free, total = (int(value) for value in torch.accelerator.get_memory_info(bound))
        reasons = {"reserved": NO_ALLOCATOR, "peak_reserved": NO_ALLOCATOR}
        if total == 0:
            unknown = ("allocated", "peak_allocated", "total", "free")
            return MemoryStats(reasons={**reasons, **dict.fromkeys(unknown, NO_FIGURES)})
        found = torch.accelerator.memory_stats(bound)
        return MemoryStats(
            allocated=int(found["allocated_bytes.all.current"]),
            peak_allocated=int(found["allocated_bytes.all.peak"]),
            total=total,
            free=free,
            reasons=reasons,
        )

    def reset_peak(self) -> None:
        pass  # NO_PEAK_RESET: the capability table says that the peak is the process's

    def empty_cache(self) -> None:
        torch.accelerator.empty_cache()

    def snapshot(self, path: str | Path) -> None:
        raise UnsupportedError(f"memory.snapshot({str(path)!r}) is unsupported on tpu: {NO_HISTORY}")
