"""The largest batch that fits: doubling, then bisection down to a stated granularity, in few compilations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from accel._search import largest
from accel.aot._compiler import Compiled
from accel.errors import ArgumentError

MOST = 2**16  # images on one device at which the search ends; beyond, the host that records the step runs out first


class Fit(NamedTuple):
    """What `largest_batch` found."""

    batch: int | None  # the largest tried that fits; None where not even a batch of 1 does
    too_large: int | None  # the smallest tried that does not fit; None where all up to `MOST` do
    granularity: int  # the two are no further apart
    tried: dict[int, Compiled]  # every compilation, by batch

    @property
    def compiles(self) -> int:
        """Compilations that the search took."""
        return len(self.tried)


def largest_batch(attempt: Callable[[int], Compiled], start: int = 32, *, most: int = MOST) -> Fit:
    """The largest batch on one device whose step fits, from `attempt(batch)`, which compiles the step for a batch.

    Doubles or halves from `start` until one batch fits and its double does not, then bisects to an eighth of the
    one that fits: three further compilations. Raises `ArgumentError` for a `start` that is not from 1 to `most`.
    """
    if not 1 <= start <= most:
        raise ArgumentError(f"start is {start}; expected a batch from 1 to {most}")
    tried: dict[int, Compiled] = {}

    def fits(batch: int) -> bool:
        tried[batch] = attempt(batch)
        return tried[batch].fits

    found = largest(fits, start, most=most, granularity=lambda good: max(1, good // 8))
    return Fit(found.good, found.bad, found.granularity, tried)
