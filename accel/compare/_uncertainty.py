"""How sure a throughput is, and whether two runs differ by more than the noise inside them.

The interval is a bootstrap over repeats and, inside each, over steps, in logarithms; with few repeats it is widened to
Student's t of their number, since a handful of repeats shows less than all of how repeats differ. That is what varied
inside a run. Two runs of the same work differ by more, as memory lies elsewhere and clocks are others: BETWEEN is added
for that, and how long the run's threads had no core, where the record tells of it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from accel.records import Record

LEVEL = 0.95
# The fields of a record that an interval around its throughput is made of.
SAMPLED = ("results.step_times", "protocol.repeats", "protocol.steps", "disturbance.cpu_wait")
# Standard deviation of the logarithm of the throughput of equal runs, beyond what varies inside each of them: see
# docs/proofs.md and docs/proofs/compare-runs.json.
BETWEEN = 0.01
_RESAMPLES = 2000
_MOST = 0.9  # of the time without a core; beyond, there was no run
_NORMAL = 1.960  # two-sided 95 % of the normal distribution, and of Student's t by degrees of freedom
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Interval(NamedTuple):
    """The 95 % interval of a figure, in its unit; of a ratio, without one."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


class Unknown(NamedTuple):
    """Why there is no interval."""

    reason: str


def sampled(record: Record) -> tuple[str, ...]:
    """Those of `SAMPLED` that `record` has: older ones do not tell what disturbed them."""
    return SAMPLED if record.disturbance else SAMPLED[:-1]


def throughput_interval(record: Record) -> Interval | Unknown:
    """The interval of the record's throughput, images/s."""
    found = _deviations(record)
    value = record.results.throughput.value
    if isinstance(found, Unknown):
        return found
    if not value:
        return Unknown("the throughput is unknown or zero")
    return _around(value, found)


def ratio_interval(record: Record, baseline: Record, ratio: float | None) -> Interval | Unknown:
    """The interval of `ratio`, the record's throughput over the baseline's."""
    own, base = _deviations(record), _deviations(baseline)
    if ratio is None:
        return Unknown("there is no ratio")
    if isinstance(own, Unknown):
        return own
    if isinstance(base, Unknown):
        return base
    # Independent runs: the resamples of the baseline in another order than those of the record itself.
    return _around(ratio, own - base[::-1])


def _around(value: float, deviations: np.ndarray) -> Interval:
    low, high = np.percentile(deviations, (50 * (1 - LEVEL), 50 * (1 + LEVEL)))
    return Interval(value * math.exp(float(low)), value * math.exp(float(high)))


def _deviations(record: Record) -> np.ndarray | Unknown:
    """Resampled logarithms of the throughput, around 0."""
    times = record.results.step_times.values
    repeats, steps = record.protocol.repeats.value, record.protocol.steps.value
    if not isinstance(repeats, int) or not isinstance(steps, int) or len(times) != repeats * steps or not times:
        return Unknown("the record does not hold the times of all its steps")
    if repeats < 2:
        return Unknown("one repeat does not show how much repeats differ; run with --repeats 3 or more")
    if min(times) <= 0:
        return Unknown("a step took no time")
    inside = _resampled(tuple(float(time) for time in times), repeats)
    return inside + math.hypot(BETWEEN, _lost(record) / _NORMAL) * _drawn()


def _lost(record: Record) -> float:
    """By how much, in logarithms, waiting for a core may have lowered the throughput."""
    share = record.disturbance.cpu_wait.value if record.disturbance else None
    return -math.log1p(-min(share or 0.0, _MOST))


@lru_cache(maxsize=1)
def _drawn() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(_RESAMPLES)


@lru_cache(maxsize=64)
def _resampled(times: tuple[float, ...], repeats: int) -> np.ndarray:
    rows = np.asarray(times).reshape(repeats, -1)
    steps = rows.shape[1]
    generator = np.random.default_rng(0)  # a report of the same records is the same report
    chosen = generator.integers(repeats, size=(_RESAMPLES, repeats, 1))
    inside = generator.integers(steps, size=(_RESAMPLES, repeats, steps))
    logs = -np.log(rows[chosen, inside].mean(axis=(1, 2)) / rows.mean())
    freedom = repeats - 1
    student = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL * (1 + 1 / (2 * freedom))
    # A bootstrap of n values spreads by sqrt((n - 1) / n) of what they say.
    spread: np.ndarray = (logs - np.median(logs)) * (math.sqrt(repeats / freedom) * student / _NORMAL)
    return spread
