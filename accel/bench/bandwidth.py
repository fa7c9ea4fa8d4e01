"""Sizes and bandwidths of collectives in nccl-tests' terms, and the alpha-beta model fitted to them.

Conventions are those of NVIDIA/nccl-tests, doc/PERFORMANCE.md: the size S of an operation is that of the larger of its
two buffers on one rank, GB are 1e9 bytes, algbw = S/t, and busbw = algbw times a factor that makes it comparable with
the speed of a link whatever the number of ranks. Where switches reduce for the ranks, busbw may exceed the link's
speed. Nothing here knows torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from accel.errors import ArgumentError

# How often (n-1)/n of S must cross each link for n ranks; the others carry S once (nccl-tests, doc/PERFORMANCE.md).
_CROSSINGS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
OPERATIONS = (*_CROSSINGS, "broadcast", "send_recv")
DEALT = ("all_gather", "reduce_scatter", "all_to_all")  # S is dealt out over the ranks, each getting or giving S/n
MARGIN = 0.05  # of the bare loop's time: what a verdict allows


def judged(low: float, high: float) -> str:
    """Whether a call takes at most `MARGIN` longer than the bare one, where the 95 % interval of the ratio is `low` to
    `high`: "within" or "beyond" where the whole interval says so, else "undecided".
    """
    return "within" if high <= 1 + MARGIN else "beyond" if low > 1 + MARGIN else "undecided"


def factor(operation: str, ranks: int) -> float:
    """What busbw is of algbw; 0 for one rank, over which nothing travels.

    Raises `ArgumentError` for an unknown operation.
    """
    if operation not in OPERATIONS:
        raise ArgumentError(f"operation is {operation!r}; expected one of {', '.join(OPERATIONS)}")
    if ranks < 1:
        raise ArgumentError(f"ranks is {ranks}; expected at least 1")
    if ranks == 1:
        return 0.0
    return _CROSSINGS[operation] * (ranks - 1) / ranks if operation in _CROSSINGS else 1.0


def algbw(size: int, seconds: float) -> float:
    """GB/s: `size` bytes over the time of one call."""
    if seconds <= 0:
        raise ArgumentError(f"seconds is {seconds}; the clock did not advance")
    return size / seconds / 1e9


def busbw(operation: str, size: int, seconds: float, ranks: int) -> float:
    """GB/s of each link that the operation comes to; `size` is S, the total where the operation deals out."""
    return algbw(size, seconds) * factor(operation, ranks)


def sizes(smallest: int, largest: int, step: int) -> list[int]:
    """`smallest`, times `step` each, up to `largest` bytes, which is always the last. Raises `ArgumentError`."""
    if smallest < 1 or largest < smallest:
        raise ArgumentError(f"sizes go from {smallest} to {largest} bytes; expected at least 1, and the smaller first")
    if step < 2:
        raise ArgumentError(f"factor is {step}; expected at least 2")
    count = int(math.log(largest / smallest, step) + 1e-9) + 1
    return list(dict.fromkeys([*(smallest * step**i for i in range(count)), largest]))


def aligned(operation: str, size: int, element: int, ranks: int) -> int:
    """`size` rounded to whole elements on each rank, and to at least one; bytes."""
    grain = element * (ranks if operation in DEALT else 1)
    return max(size // grain, 1) * grain


@dataclass(frozen=True)
class Fit:
    """t = latency + S / bandwidth, over the points that were measured."""

    latency: float  # seconds: alpha
    bandwidth: float | None  # bytes/s of algbw: 1/beta; None where larger sizes took no longer
    worst: float  # largest |modelled - measured| / measured
    points: int

    def seconds(self, size: float) -> float:
        return self.latency + (size / self.bandwidth if self.bandwidth else 0.0)


def fit(points: Sequence[tuple[int, float]]) -> Fit:
    """Least squares of the relative error over (bytes, seconds), with neither part negative.

    Relative, because times span six orders of magnitude and an absolute fit would see the largest sizes only. Raises
    `ArgumentError` for fewer than two sizes.
    """
    if len({size for size, _ in points}) < 2:
        raise ArgumentError(f"{len(points)} points; a line of latency and bandwidth needs two sizes at least")
    # Of a/t + b*S/t = 1 in a and b: the normal equations of two unknowns.
    rows = [(1 / seconds, size / seconds) for size, seconds in points]
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = sum(x[0] for x in rows), sum(x[1] for x in rows)
    determinant = aa * bb - ab * ab
    alpha, beta = (a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b1 / bb
    elif beta < 0:
        alpha, beta = a1 / aa, 0.0
    found = Fit(alpha, 1 / beta if beta else None, 0.0, len(points))
    worst = max(abs(found.seconds(size) - seconds) / seconds for size, seconds in points)
    return Fit(found.latency, found.bandwidth, worst, found.points)


def parse_size(text: str) -> int:
    """Bytes of "8", "4K", "16M", "1G" (powers of 1024, as nccl-tests reads them). Raises `ArgumentError`."""
    number, unit = text.strip().upper().removesuffix("B").removesuffix("I"), 1
    if number and number[-1] in "KMG":
        number, unit = number[:-1], 1024 ** ("KMG".index(number[-1]) + 1)
    if not number.isdecimal() or not int(number):
        raise ArgumentError(f"size is {text!r}; expected bytes, such as 8, 4K, 16M or 1G")
    return int(number) * unit


def words(size: int) -> str:
    """`size` as nccl-tests' options write it: 8, 4K, 16M, 1G."""
    for power, unit in ((3, "G"), (2, "M"), (1, "K")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)
