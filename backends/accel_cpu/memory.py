"""Memory of a CPU process as the operating system counts it.

torch has no figures for CPU tensors (T48): `allocated` is None outside a `track` block, in which `accel.tracking`
counts them, and `reserved` is the process's resident set. Linux gives the latter in /proc (see proc(5)); other systems
have no stable source without a further dependency, and their figures are None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from accel.errors import ArgumentError, UnsupportedError
from accel.memory import Memory, MemoryStats, Tracked
from accel.tracking import Tracker

PROC = Path("/proc")
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
NO_TENSOR_FIGURES = "torch counts no live bytes of CPU tensors; inside memory.track() they are counted"
COUNTED = "storages that the operations of a track() block touch, without what a kernel takes for itself"


class CpuMemory(Memory):
    """Resident set and its peak; live bytes inside a `track` block."""

    sources: ClassVar[Mapping[str, str]] = {
        "allocated": f"inside track(): {COUNTED}",
        "reserved": "VmRSS of /proc/self/status",
        "peak_allocated": "inside track(): the most of them at once",
        "peak_reserved": "VmHWM of /proc/self/status",
        "total": "MemTotal of /proc/meminfo, or the cgroup's limit where it is smaller",
        "free": "MemAvailable of /proc/meminfo, at most the total",
        "track.peak": COUNTED,
        "track.change": COUNTED,
    }

    def __init__(self) -> None:
        self._trackers: list[Tracker] = []  # of the open blocks, the outermost first

    def stats(self, index: int | None = None) -> MemoryStats:
        if index not in (None, 0):
            raise ArgumentError(f"index={index!r}: cpu has 1 device; expected None or 0")
        counted = self._trackers[0] if self._trackers else None
        reasons = {} if counted else {"allocated": NO_TENSOR_FIGURES, "peak_allocated": NO_TENSOR_FIGURES}
        resident, peak = _kib("self/status", "VmRSS"), _kib("self/status", "VmHWM")
        free = _kib("meminfo", "MemAvailable")
        total, why = total_memory()
        for name, value in (("reserved", resident), ("peak_reserved", peak), ("free", free)):
            if value is None:
                reasons[name] = f"the operating system gives no such figure in {PROC}"
        if total is None:
            reasons["total"] = why
        elif free is not None:
            free = min(free, total)
        return MemoryStats(
            allocated=counted.live if counted else None,
            reserved=resident,
            peak_allocated=counted.since_reset if counted else None,
            peak_reserved=peak,
            total=total,
            free=free,
            reasons=reasons,
        )

    @contextlib.contextmanager
    def track(self, index: int | None = None) -> Iterator[Tracked]:
        found, tracker = Tracked(), Tracker("cpu")
        start = self.stats(index)
        self._trackers.append(tracker)
        try:
            with tracker:
                yield found
        finally:
            self._trackers.remove(tracker)
            found.settle(start, self.stats(index))
            found.count(tracker.peak, tracker.change)

    def reset_peak(self) -> None:
        if self._trackers:
            self._trackers[0].restart_peak()
        try:
            (PROC / "self/clear_refs").write_text("5")  # proc(5): resets the peak resident set to the current one
        except OSError:  # not Linux, or not permitted: the capability table says that the peak is then the process's
            pass

    def empty_cache(self) -> None:
        pass  # torch keeps no cache of CPU memory; the C library decides when to return pages

    def snapshot(self, path: str | Path) -> None:
        raise UnsupportedError(
            f"memory.snapshot({str(path)!r}) is unsupported on cpu: torch keeps no allocation history there"
        )


def total_memory() -> tuple[int | None, str]:
    """Bytes that this process could use: the machine's memory or its cgroup's limit, the smaller; or None and why."""
    total = _kib("meminfo", "MemTotal")
    for path in CGROUP_LIMITS:
        try:
            text = Path(path).read_text().strip()
        except OSError:  # no cgroup of this version here
            continue
        if text.isdecimal():
            total = int(text) if total is None else min(total, int(text))
    return total, "" if total is not None else f"the operating system gives no such figure in {PROC}"


def _kib(file: str, key: str) -> int | None:
    """The value of `key` in a /proc file that counts in KiB, in bytes."""
    try:
        lines = (PROC / file).read_text().splitlines()
    except OSError:  # not Linux
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return None
