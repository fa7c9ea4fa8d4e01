"""Time limits as users give them: seconds as int or float, or a timedelta; always positive and finite."""

from __future__ import annotations

import math
import time
from datetime import timedelta

from accel.errors import ArgumentError


def seconds(value: float | timedelta, name: str = "timeout") -> float:
    """`value` in seconds. Raises `ArgumentError` for anything but a positive, finite time."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number) or number <= 0:
        raise ArgumentError(f"{name} is {value!r}; expected a positive number of seconds or a timedelta")
    return float(number)


def left(end: float) -> float:
    """Seconds until the time `end` of `time.monotonic`, never below a millisecond."""
    return max(end - time.monotonic(), 0.001)
