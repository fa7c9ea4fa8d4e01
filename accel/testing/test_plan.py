"""Contract of `accel.plan`: the peak it foretells is the peak that is measured, whatever the step does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from accel import plan
from accel.testing.planned import Case, measured_on_rank
from accel.testing.ranks import RankPool
from accel.testing.test_memory import needs

STEPS = 5
CLOSE = 0.05  # of the figure


class Pair(NamedTuple):
    """A step as it is and with recomputed activations."""

    plain: int  # bytes at the measured peak
    recomputed: int
    planned: plan.Plan
    planned_recomputed: plan.Plan


def recomputed(backend: Any, start: Any, model: str, statistics: str) -> Pair:
    """Train `model` both ways, to equal parameters, with its BatchNorm `statistics` moved once a step."""
    runs, plans = [], []
    for checkpoint in (False, True):
        case, session = Case(model, checkpoint=checkpoint), start()
        runs.append(case.measured(session, STEPS))
        plans.append(case.planned(backend))
        session.close()
    plain, less = runs
    torch.testing.assert_close(less.state, plain.state, rtol=0, atol=0)
    assert int(less.state[f"{statistics}.num_batches_tracked"]) == STEPS
    return Pair(plain.peak, less.peak, *plans)


def test_the_plan_foretells_the_measured_peak_of_a_resnet(backend: Any, start: Any) -> None:  # T08
    """Nearly all of it parameters at this size: what recomputation saves is less than what the peaks are held to."""
    needs(backend, "memory.track")
    found = recomputed(backend, start, "resnet18", "bn1")
    assert found.plain == pytest.approx(found.planned.peak_allocated, rel=CLOSE)
    assert found.recomputed == pytest.approx(found.planned_recomputed.peak_allocated, rel=CLOSE)
    assert found.planned_recomputed.activations < found.planned.activations


def test_checkpointing_saves_what_the_plan_says(backend: Any, start: Any) -> None:  # T08
    needs(backend, "memory.track")
    found = recomputed(backend, start, "narrow", "blocks.0.1")
    assert found.plain == pytest.approx(found.planned.peak_allocated, rel=CLOSE)
    fall = found.planned.peak_allocated - found.planned_recomputed.peak_allocated
    assert found.plain - found.recomputed == pytest.approx(fall, rel=CLOSE)
    assert fall > 0.4 * found.planned.peak_allocated


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_plan_foretells_the_peak_under_accumulation_and_autocast(backend: Any, start: Any, precision: str) -> None:
    """Under autocast the casts of parameters, which it keeps for the forward, are in the plan."""
    needs(backend, "memory.track")
    needs(backend, f"precision.{precision}")
    case = Case("wide", precision=precision, accumulate=2)
    found = case.measured(start(precision=precision, accumulate=2), steps=2)
    planned = case.planned(backend)
    assert found.peak == pytest.approx(planned.peak_allocated, rel=CLOSE)
    assert planned.saved_by_accumulation == planned.whole_batch_peak - planned.peak
    if precision != "fp32":
        casts = planned.activations - replace(case, precision="fp32").planned(backend).activations
        assert casts > CLOSE * planned.peak_allocated  # or the test above would hold without them


def test_accumulation_saves_what_the_plan_says(backend: Any, start: Any) -> None:
    needs(backend, "memory.track")
    peaks = {}
    for batch, accumulate in ((16, 2), (32, 1)):
        session = start(accumulate=accumulate)
        peaks[accumulate] = Case("narrow", batch=batch, accumulate=accumulate).measured(session, steps=2).peak
        session.close()
    planned = Case("narrow", batch=16, accumulate=2).planned(backend)
    assert peaks[1] - peaks[2] == pytest.approx(planned.saved_by_accumulation, rel=CLOSE)
    assert planned.saved_by_accumulation > 0.3 * planned.whole_batch_peak


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_plan_foretells_the_peak_between_ranks(backend: Any, ranks: RankPool, accumulate: int) -> None:
    """With DDP's buckets, and before a window's end with the gradients that lie beside them."""
    needs(backend, "memory.track")
    case = Case("wide", accumulate=accumulate)
    alone, planned = (case.planned(backend, devices) for devices in (1, 2))
    for found in ranks.run(measured_on_rank, case, 3, timeout=240):
        assert found.peak == pytest.approx(planned.peak_allocated, rel=CLOSE)
    more = planned.peak_allocated - alone.peak_allocated
    assert more > CLOSE * planned.peak_allocated  # or the test above would hold without the buckets
