"""Time limits as users give them: seconds as int or float, or a timedelta; always positive and finite."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta

from accel.errors import ArgumentError


def seconds(value: float | timedelta, name: str = "timeout") -> float:
    """`value` in seconds. Raises `ArgumentError` for anything but a positive, finite time."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number) or number <= 0:
        raise ArgumentError(f"{name} is {value!r}; expected a positive number of seconds or a timedelta")
    return float(number)


def countdown(limit: float) -> Callable[[], float]:
    """A function that gives the seconds left of `limit`, never below a millisecond."""
    end = time.monotonic() + limit
    return lambda: max(end - time.monotonic(), 0.001)
