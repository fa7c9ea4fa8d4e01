"""Timing of steps over a synchronized device, and the arithmetic that turns times into throughput.

Every timed step starts and ends on a synchronized device, with a lazy graph cut and run before the clock stops, so a
step is never the time to launch it. What is not training (reading a loss, drawing progress) happens between steps with
the clock stopped. Warm-up goes on until its last step compiled nothing and was not shorter than those before, on any
rank; compilation is accounted apart. The device, the clock and the agreement between ranks are arguments: nothing here
knows torch or a vendor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from accel.errors import ClockError

CLOCK = "time.perf_counter on each host; device synchronized before and after every timed step; slowest rank counts"
MAX_EXTENSION = 50  # warm-up steps beyond those asked for; compilation that goes on longer is a fault of the run
SETTLE = 10  # warm-up steps beyond those asked for and those that compile, for a step time that still falls
STILL = 0.1  # by how much a step may be shorter than the shortest before it and the step time still be called still


class TimedDevice(Protocol):
    """What timing needs of an `accel.device.Device`."""

    def synchronize(self) -> None: ...

    def flush(self) -> None: ...

    def counters(self) -> dict[str, int]: ...


class RankTiming(NamedTuple):
    """What one rank measured. `seconds` and `images` have one row a repeat and one entry a step."""

    seconds: list[list[float]]
    images: list[list[int]]
    warmup: list[float]  # seconds of each warm-up step; the first is the first step of the run
    compiling: list[float]  # seconds of the warm-up steps in which something was compiled
    warnings: list[str]


@dataclass(frozen=True)
class Summary:
    """Figures over all ranks. Times in seconds, throughput in images/s."""

    throughput_repeats: list[float]
    throughput: float
    step_times: list[float]
    step_time_p10: float
    step_time: float
    step_time_p90: float
    first_step_time: float
    compile_time: float | None  # None where nothing was compiled
    warmup_steps: int
    warnings: list[str]


def measure(
    step: Callable[[], int],
    device: TimedDevice,
    *,
    steps: int,
    repeats: int,
    warmup: int,
    barrier: Callable[[], object] = lambda: None,
    any_rank: Callable[[bool], bool] = bool,
    between: Callable[[], object] = lambda: None,
    settle: int = SETTLE,
    clock: Callable[[], float] = time.perf_counter,
) -> RankTiming:
    """Run `step`, which returns the images it trained on, and time it on this rank.

    `barrier` lets all ranks start a repeat together; `any_rank(flag)` is True on all ranks when the flag is True on
    one; `between` runs after every step with the clock stopped; `settle` is how many warm-up steps a step time that
    still falls may add, 0 for a run whose number of steps is fixed.
    """

    def timed() -> tuple[float, int, bool]:
        compiles = device.counters()["compiles"]
        device.synchronize()
        start = clock()
        images = step()
        device.flush()
        device.synchronize()
        seconds = clock() - start
        if seconds <= 0:
            raise ClockError(
                f"a step of {images} images took {seconds} s: the clock "
                f"{'went backwards' if seconds < 0 else 'did not advance'} around it; run the benchmark again"
            )
        between()
        return seconds, images, device.counters()["compiles"] != compiles

    result = RankTiming([], [], [], [], [])
    moved = falling = True
    settling = 0
    while (
        len(result.warmup) < warmup
        or (moved and len(result.warmup) < warmup + MAX_EXTENSION)
        or (not moved and falling and settling < settle)
    ):
        settling += len(result.warmup) >= warmup and not moved
        seconds, _, compiled = timed()
        result.warmup.append(seconds)
        if compiled:
            result.compiling.append(seconds)
        moved, falling = any_rank(compiled), any_rank(not still(result.warmup))
    if moved:
        result.warnings.append(
            f"something was still compiled after {len(result.warmup)} warm-up steps; times include it"
        )
    elif not still(result.warmup):
        result.warnings.append(
            f"the step time was not still after {len(result.warmup)} warm-up steps: the last took "
            f"{result.warmup[-1]:.3g} s, the one before {result.warmup[-2]:.3g} s"
            if len(result.warmup) > 1
            else "one warm-up step does not show whether the step time is still; warm up for longer"
        )

    fallbacks = device.counters().get("fallbacks", 0)  # where they are not counted, the record says so
    compiled_steps = 0
    for _ in range(repeats):
        barrier()
        rows = [timed() for _ in range(steps)]
        result.seconds.append([seconds for seconds, _, _ in rows])
        result.images.append([images for _, images, _ in rows])
        compiled_steps += sum(compiled for _, _, compiled in rows)
    if compiled_steps:
        result.warnings.append(f"something was compiled during {compiled_steps} timed steps; their times include it")
    if late := device.counters().get("fallbacks", 0) - fallbacks:
        result.warnings.append(f"{late} operations of the timed steps ran on the host instead of the device")
    return result


def still(times: Sequence[float]) -> bool:
    """Whether steps that took `times` no longer get faster: the last is not shorter than the shortest before it."""
    return len(times) > 1 and times[-1] >= (1 - STILL) * min(times[:-1])


def summarize(ranks: Sequence[RankTiming]) -> Summary:
    """The figures of a run from what each of its ranks measured: images of all ranks over the time of the slowest."""
    repeats = range(len(ranks[0].seconds))
    rates = [
        rate(sum(sum(rank.images[i]) for rank in ranks), max(sum(rank.seconds[i]) for rank in ranks)) for i in repeats
    ]
    step_times = [max(times) for i in repeats for times in zip(*(rank.seconds[i] for rank in ranks), strict=True)]
    p10, median, p90 = (float(value) for value in np.percentile(step_times, (10, 50, 90)))
    compiling = [sum(max(0.0, seconds - median) for seconds in rank.compiling) for rank in ranks if rank.compiling]
    warnings = [
        f"rank {index}: {warning}" if len(ranks) > 1 else warning
        for index, rank in enumerate(ranks)
        for warning in rank.warnings
    ]
    return Summary(
        throughput_repeats=rates,
        throughput=float(np.median(rates)),
        step_times=step_times,
        step_time_p10=min(p10, median),  # interpolation may round to the wrong side of the median
        step_time=median,
        step_time_p90=max(p90, median),
        first_step_time=max(rank.warmup[0] for rank in ranks),
        compile_time=max(compiling) if compiling else None,
        warmup_steps=len(ranks[0].warmup),
        warnings=warnings,
    )


def rate(images: int, seconds: float) -> float:
    """Images a second. Raises `ClockError` when no time passed: the clock was not read around the work."""
    if seconds <= 0:
        raise ClockError(f"{images} images in {seconds} s: the clock did not advance; run the benchmark again")
    return images / seconds
