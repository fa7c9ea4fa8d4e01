"""`largest`: the largest number that passes a test, by doubling or halving from a start and then bisecting."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Found(NamedTuple):
    """What `largest` found."""

    good: int | None  # the largest that passed; None where not even the least does
    bad: int | None  # the smallest that failed; None where all up to the most pass
    granularity: int  # the two are no further apart


def largest(
    passes: Callable[[int], bool],
    start: int,
    *,
    least: int = 1,
    most: int,
    granularity: Callable[[int], int] = lambda _: 1,
) -> Found:
    """Search from `start`, between `least` and `most`; `granularity(good)` says how far apart the two ends may stay,
    once `good` passed and its double did not.
    """
    good: int | None = None
    bad: int | None = None
    value = start
    while good is None or bad is None:
        if passes(value):
            good = value
            if value == most:
                break
            value = min(2 * value, most)
        else:
            bad = value
            if value == least:
                break
            value = max(value // 2, least)
    if good is None or bad is None:
        return Found(good, bad, 1 if good is None else granularity(good))
    step = granularity(good)
    while bad - good > step:
        middle = (good + bad) // 2
        if passes(middle):
            good = middle
        else:
            bad = middle
    return Found(good, bad, step)
