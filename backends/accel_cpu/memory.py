"""Memory of a CPU process as the operating system counts it.

torch has no figures for CPU tensors (T48), so `allocated` is None; `reserved` is the process's resident set. Linux
gives them in /proc (see proc(5)); other systems have no stable source without a further dependency, and their figures
are None.
"""

from __future__ import annotations

from pathlib import Path

from accel.errors import ArgumentError, UnsupportedError
from accel.memory import Memory, MemoryStats

PROC = Path("/proc")
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
NO_TENSOR_FIGURES = "torch counts no live bytes of CPU tensors"


class CpuMemory(Memory):
    """Resident set and its peak."""

    def stats(self, index: int | None = None) -> MemoryStats:
        if index not in (None, 0):
            raise ArgumentError(f"index={index!r}: cpu has 1 device; expected None or 0")
        reasons = {"allocated": NO_TENSOR_FIGURES, "peak_allocated": NO_TENSOR_FIGURES}
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
        return MemoryStats(reserved=resident, peak_reserved=peak, total=total, free=free, reasons=reasons)

    def reset_peak(self) -> None:
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
