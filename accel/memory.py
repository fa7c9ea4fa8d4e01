"""`Memory`: what is allocated, reserved, at its peak and left, with one meaning on every backend.

- allocated: bytes in live tensors. reserved: bytes held by the allocator (on CPU: the resident set of the process).
- peak_*: highest value since the process started or since `reset_peak()`.
- total, free: bytes of the device; free is what a new allocation could get from the device or operating system.

A figure that the hardware cannot give is None and `reasons` says why; it is never 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from accel.errors import UnsupportedError

# Words of torch's CPU allocator; every backend allocates host memory too.
HOST_OOM = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
FIELDS = ("allocated", "reserved", "peak_allocated", "peak_reserved", "total", "free")


@dataclass(frozen=True)
class MemoryStats:
    """Bytes, or None with the reason under the field's name in `reasons`."""

    allocated: int | None = None
    reserved: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    total: int | None = None
    free: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unexplained = [name for name in FIELDS if getattr(self, name) is None and name not in self.reasons]
        if unexplained:
            raise ValueError(f"MemoryStats fields {unexplained} are None without a reason; give reasons[field]")


class Memory(ABC):
    """Memory figures of one backend's devices."""

    oom_texts: ClassVar[tuple[str, ...]] = ()  # of the vendor's RuntimeErrors that mean "out of memory"

    @abstractmethod
    def stats(self, index: int | None = None) -> MemoryStats:
        """Figures of device `index` (default: current). Raises `ArgumentError` for an index out of range."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Start the peaks anew at the live values; does nothing where the backend cannot (see the capability table)."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Return cached, unused memory to the device or operating system."""

    def is_oom(self, exc: BaseException) -> bool:
        """Whether `exc` means that this backend ran out of device or host memory."""
        import torch

        return isinstance(exc, (MemoryError, torch.OutOfMemoryError)) or (
            isinstance(exc, RuntimeError) and any(text in str(exc) for text in (*self.oom_texts, *HOST_OOM))
        )

    @abstractmethod
    def snapshot(self, path: str | Path) -> None:
        """Write the allocator's history for PyTorch's memory visualiser. Raises `UnsupportedError` if there is none."""

    def record_history(self, enabled: bool = True) -> None:
        """Keep each allocation with its stack trace for `snapshot`, or stop keeping them; costs time while it is on.

        Raises `UnsupportedError` where there is no history (`memory.snapshot` in the capability table).
        """
        raise UnsupportedError(f"memory.record_history({enabled!r}) is unsupported: this backend keeps no history")

    def limit(self, fraction: float, index: int | None = None) -> None:
        """Let this process take at most this share of the device's memory; beyond it allocations fail as out of memory.

        Raises `ArgumentError` unless 0 < fraction <= 1, `UnsupportedError` where there is no limit (`memory.limit` in
        the capability table).
        """
        raise UnsupportedError(f"memory.limit({fraction!r}) is unsupported: this backend's allocator takes no limit")
