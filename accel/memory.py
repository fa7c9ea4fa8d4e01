"""`Memory`: what is allocated, reserved, at its peak and left, with one meaning on every backend.

`DEFINITIONS` says what each figure means, once; a backend's `sources` say where it takes them from. A figure that the
hardware cannot give is None and `reasons` says why; it is never 0.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from accel.allocator import EXACT, Allocator
from accel.errors import UnsupportedError

DEFINITIONS = {
    "allocated": "bytes of live tensors",
    "reserved": "bytes that the allocator holds, in use or cached; on a CPU the resident set of the process",
    "peak_allocated": "most bytes of live tensors at once, since the process started or reset_peak()",
    "peak_reserved": "most bytes held at once, since the process started or reset_peak()",
    "total": "bytes of the device; on a CPU those that this process may use",
    "free": "bytes that a new allocation could get from the device or the operating system",
}
TRACKED = {
    "track.peak": "most bytes of live tensors at once inside a track() block",
    "track.change": "bytes of live tensors at the end of a track() block, less those at its beginning",
}
FIELDS = tuple(DEFINITIONS)

# Words for "out of memory" that do not depend on the vendor: of the errors of CUDA, CANN, NCCL and PJRT (a status code
# of XLA, when compiling and when running), and of torch's CPU allocator, since every backend allocates host memory too.
OOM_TEXTS = (
    "out of memory",
    "Out of memory",
    "RESOURCE_EXHAUSTED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)
_TRACKED_FIELDS = ("peak", "change", "peak_reserved", "change_reserved")
STILL_OPEN = "the track() block is still open"
HIGHER_BEFORE = "the peak cannot start anew here, and it was higher before the block"


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


@dataclass
class Tracked:
    """What a `Memory.track` block took, in bytes, once it has ended; None with the reason in `reasons`."""

    peak: int | None = None  # most bytes of live tensors at once inside the block
    change: int | None = None  # bytes of live tensors at its end, less those at its beginning
    peak_reserved: int | None = None
    change_reserved: int | None = None
    reasons: dict[str, str] = field(default_factory=lambda: dict.fromkeys(_TRACKED_FIELDS, STILL_OPEN))

    def settle(self, start: MemoryStats, end: MemoryStats, peaks: Mapping[str, int | None] | None = None) -> None:
        """Fill in what the block took from the figures at its `start` and `end`.

        peaks: the highest "allocated" and "reserved" inside the block; without them a peak is known only where the
        device's own rose.
        """
        for kind, peak, change in (("allocated", "peak", "change"), ("reserved", "peak_reserved", "change_reserved")):
            before, after = getattr(start, kind), getattr(end, kind)
            why = end.reasons.get(kind) or start.reasons.get(kind, "")
            self._set(change, None if before is None or after is None else after - before, why)
            if peaks is not None:
                self._set(peak, peaks[kind], why)
                continue
            before, after = getattr(start, f"peak_{kind}"), getattr(end, f"peak_{kind}")
            if before is None or after is None:
                self._set(peak, None, end.reasons.get(f"peak_{kind}") or start.reasons.get(f"peak_{kind}", ""))
            else:
                self._set(peak, after if after > before else None, HIGHER_BEFORE)

    def count(self, peak: int, change: int) -> None:
        """Take the live bytes from whoever counted them inside the block."""
        self._set("peak", peak, "")
        self._set("change", change, "")

    def _set(self, name: str, value: int | None, why: str) -> None:
        setattr(self, name, value)
        self.reasons.pop(name, None)
        if value is None:
            self.reasons[name] = why


class Memory(ABC):
    """Memory figures of one backend's devices."""

    oom_texts: ClassVar[tuple[str, ...]] = ()  # of the vendor's RuntimeErrors that mean "out of memory"
    allocator: ClassVar[Allocator] = EXACT  # how `accel.plan` plans for it
    sources: ClassVar[Mapping[str, str]] = {}  # where a figure of `DEFINITIONS` or `TRACKED` comes from

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
            isinstance(exc, RuntimeError) and any(text in str(exc) for text in (*OOM_TEXTS, *self.oom_texts))
        )

    def summary(self, index: int | None = None) -> str:
        """The figures of device `index` (default: current) as a table in plain text, with sources or reasons."""
        from accel import _memory_summary

        return _memory_summary.text(self, index)

    @contextlib.contextmanager
    def track(self, index: int | None = None) -> Iterator[Tracked]:
        """Measure a block on device `index` (default: current): what comes from `with` is filled in when it ends.

        Neither the user's peaks nor other blocks, around or inside this one, notice it. Lazy devices take memory when a
        graph runs: put whole steps inside. Raises `ArgumentError` for an index out of range.
        """
        found = Tracked()
        start = self.stats(index)
        try:
            yield found
        finally:
            found.settle(start, self.stats(index))

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
