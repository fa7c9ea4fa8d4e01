"""What the schema of a record cannot say: figures that must agree with each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from accel.errors import RecordError

AGAIN = "make the record again"
NEAR = 1e-6  # for what rounding does to a figure


def check_consistency(data: dict[str, Any], where: str) -> None:
    """Raise `RecordError`, in one line that opens with `where`, unless the figures of a valid record agree."""
    work, hardware, protocol, results = data["workload"], data["hardware"], data["protocol"], data["results"]
    batch, accumulate, whole = (work[name]["value"] for name in ("batch_per_device", "accumulate", "global_batch"))
    world = hardware["world_size"]["value"]
    if None not in (batch, accumulate, whole, world) and whole != batch * accumulate * world:
        raise RecordError(
            f"{where}: workload.global_batch is {whole}, but {batch} images x {accumulate} micro-batches x {world} "
            f"ranks is {batch * accumulate * world}; {AGAIN}"
        )
    steps, repeats = protocol["steps"]["value"], protocol["repeats"]["value"]
    for name, value in (("steps", steps), ("repeats", repeats)):
        if value == 0:
            raise RecordError(f"{where}: protocol.{name} is 0, so nothing was timed; {AGAIN} with --{name} 1 or more")
    if hardware["devices"]["value"] == 0:
        raise RecordError(f"{where}: hardware.devices is 0, so nothing was run; {AGAIN}")
    rate, rates = results["throughput"]["value"], results["throughput_repeats"]["values"]
    if rate is not None and rates and not min(rates) * (1 - NEAR) <= rate <= max(rates) * (1 + NEAR):
        raise RecordError(
            f"{where}: results.throughput is {rate}, which is not between its repeats ({min(rates)} to {max(rates)} "
            f"images/s); {AGAIN}"
        )
    times = len(results["step_times"]["values"])
    if None not in (steps, repeats) and times and times != steps * repeats:
        raise RecordError(
            f"{where}: results.step_times has {times} values, but {repeats} repeats of {steps} steps were timed; "
            f"{AGAIN}"
        )
    marks = [results[name]["value"] for name in ("step_time_p10", "step_time", "step_time_p90")]
    if None not in marks and marks != sorted(marks):
        raise RecordError(f"{where}: results.step_time is not between its p10 and p90 ({marks} s); {AGAIN}")
    _check_curve(results["loss_curve"]["points"], where)
    if data.get("goal") is not None:
        _check_goal(data["goal"], where)


def _check_curve(points: list[list[Any]], where: str) -> None:
    for (step, _), (following, _) in pairwise(points):
        if following <= step:
            raise RecordError(f"{where}: results.loss_curve has step {following} after step {step}; {AGAIN}")


def _check_goal(goal: dict[str, Any], where: str) -> None:
    at, accuracies = goal["evaluated_at"]["values"], goal["accuracies"]["values"]
    if len(at) != len(accuracies):
        raise RecordError(
            f"{where}: goal.evaluated_at has {len(at)} values and goal.accuracies {len(accuracies)}; {AGAIN}"
        )
    for before, after in pairwise(at):
        if after <= before:
            raise RecordError(
                f"{where}: goal.evaluated_at has {after} s after {before} s: the clock went backwards; {AGAIN}"
            )
    if any(one > 1 for one in accuracies):
        raise RecordError(f"{where}: goal.accuracies has {max(accuracies)}, which is more than all images; {AGAIN}")
    target = goal["target"]["value"]
    first = None if target is None else next((i for i, one in enumerate(accuracies) if one >= target), None)
    outcome = "no target" if target is None else "not reached" if first is None else "reached"
    if goal["outcome"] != outcome:
        raise RecordError(
            f"{where}: goal.outcome is {goal['outcome']!r}, but by its target and accuracies it is {outcome!r}; {AGAIN}"
        )
    expected = None if first is None else at[first]
    if goal["time_to_target"]["value"] != expected:
        raise RecordError(
            f"{where}: goal.time_to_target is {goal['time_to_target']['value']}, but the evaluation that reached the "
            f"target ended at {expected}; {AGAIN}"
        )
