"""How much of the gradients' reduction is hidden behind backward: backward alone, with the reduction, and the reduction
alone.

Measured after the run, in windows of three micro-batches: the second one's backward adds to gradients that are there
and reduces nothing, the third one's does the same and reduces. Both start together on all ranks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel.records import Figure

if TYPE_CHECKING:
    from accel.bench._train import Trainer
    from accel.session import Session

_LEAST, _MOST = 3, 9  # windows; beyond the least only while they have taken less than _SECONDS
_SECONDS = 2.0


def measure(
    session: Session, trainer: Trainer, reduction: Figure, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Figure]:
    """`backward_alone_time` and `reduce_overlap`, given the reduction alone; every rank must call it."""
    if session.world_size == 1:
        return _unknown("one rank reduces nothing")
    if session.backend.kind == "lazy":
        return _unknown("the reduction is inside the step's graph")
    times: list[list[float]] = []
    accumulate, session.accumulate = session.accumulate, 3

    def backward(loss: Any) -> None:
        session.backend.device.synchronize()
        session.barrier()
        start = clock()
        session.backward(loss)
        session.backend.device.synchronize()
        times[-1].append(clock() - start)

    began = clock()
    while len(times) < _LEAST or (len(times) < _MOST and not session.any(clock() - began > _SECONDS)):
        times.append([])
        trainer.window(backward)
    session.accumulate = accumulate
    mine = [statistics.median(window[index] for window in times) for index in (1, 2)]
    alone, both = (max(column) for column in zip(*session.backend.collective.all_gather_object(mine), strict=True))
    return figures(alone, both, float(reduction.value or 0.0))


def figures(alone: float, both: float, reduction: float) -> dict[str, Figure]:
    """The two figures, from seconds of backward alone, with the reduction, and of the reduction alone."""
    if reduction <= 0:
        return _unknown("the reduction alone is not known")
    hidden = 1 - (both - alone) / reduction
    return {
        "backward_alone_time": Figure(alone, "s"),
        "reduce_overlap": Figure(min(1.0, max(0.0, hidden)), "fraction"),
    }


def _unknown(why: str) -> dict[str, Figure]:
    return {
        "backward_alone_time": Figure(None, "s", reason=why),
        "reduce_overlap": Figure(None, "fraction", reason=why),
    }
