"""Memory of XLA devices as PJRT's client counts it: live bytes, their peak and the limit on TPU, nothing on CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch_xla.core.xla_model as xm

from accel.errors import UnsupportedError
from accel.memory import FIELDS, Memory, MemoryStats
from accel_xla.device import XlaDevice

NO_FIGURES = "PJRT's CPU client keeps no memory figures (torch_xla 2.9 answers UNIMPLEMENTED)"
NO_ALLOCATOR = "PJRT gives live bytes only, not what its allocator holds"


class XlaMemory(Memory):
    """Live bytes and their peak; PJRT has no figure for what its allocator reserves."""

    sources: ClassVar[Mapping[str, str]] = {
        "allocated": "bytes_used of PJRT's client",
        "peak_allocated": "peak_bytes_used of PJRT's client, of the process",
        "total": "bytes_limit of PJRT's client",
        "free": "bytes_limit less bytes_used",
        "track.peak": "the process's peak, where it rose inside the block",
        "track.change": "bytes_used at both ends",
    }

    def __init__(self, device: XlaDevice) -> None:
        self._device = device

    def stats(self, index: int | None = None) -> MemoryStats:
        device = self._device.at(index)
        try:
            found = xm.get_memory_info(device)
        except RuntimeError as error:
            why = NO_FIGURES if "UNIMPLEMENTED" in str(error) else f"PJRT gave no figures: {error}"
            return MemoryStats(reasons=dict.fromkeys(FIELDS, why))
        used, total = found["bytes_used"], found["bytes_limit"]
        peak = found.get("peak_bytes_used")
        reasons = {"reserved": NO_ALLOCATOR, "peak_reserved": NO_ALLOCATOR}
        if peak is None:
            reasons["peak_allocated"] = "PJRT gave no peak"
        return MemoryStats(allocated=used, peak_allocated=peak, total=total, free=total - used, reasons=reasons)

    def reset_peak(self) -> None:
        pass  # PJRT's peak is that of the process: the capability table says so

    def empty_cache(self) -> None:
        pass  # the client frees a buffer when its last tensor goes

    def snapshot(self, path: str | Path) -> None:
        raise UnsupportedError(
            f"memory.snapshot({str(path)!r}) is unsupported on xla: PJRT keeps no allocation history in torch's format"
        )
