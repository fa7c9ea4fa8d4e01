"""Time to an epoch and to an accuracy, as MLPerf means it: wall time of a training run as it was.

The clock starts before the first data access - the folder's file list is one - and stops with the evaluation that
reaches the target; start, compilation, warm-up, loading and every evaluation are in it. A run that does not reach its
target is a result with a reason, and has no time. Training goes on to the end of its schedule either way. Rules:
https://github.com/mlcommons/training_policies/blob/master/training_rules.adoc
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from accel.errors import DataError
from accel.records import Figure, Goal, Series

CLOCK = (
    "time.perf_counter on each host, slowest rank; from before the first data access, with start, compilation, "
    "warm-up, loading and every evaluation in it"
)
NO_TARGET = "no target was given; --epochs N --target 0.9 trains and evaluates until there"


class Evaluated(NamedTuple):
    """The share of held-out images classified right, and how many there are; each counts once."""

    accuracy: float
    images: int


class Passed(NamedTuple):
    """What one rank saw: seconds of each whole epoch, and of the run at the end of each evaluation."""

    epochs: list[float]
    at: list[float]
    accuracies: list[float]
    images: int | None


class Epochs:
    """Notes where epochs of `steps` optimizer steps end, and evaluates there where `evaluate` is given.

    `started` is the clock's time before the first data access.
    """

    def __init__(
        self,
        started: float,
        steps: int,
        evaluate: Callable[[], Evaluated] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._started, self._steps, self._evaluate, self._clock = started, steps, evaluate, clock
        self._began = started
        self.passed = Passed([], [], [], None)

    def begin(self) -> None:
        """The first epoch begins."""
        self._began = self._clock()

    def after(self, done: int) -> None:
        """`done` optimizer steps are done; every rank must call it after each."""
        if done % self._steps:
            return
        self.passed.epochs.append(self._clock() - self._began)
        if self._evaluate is not None:
            found = self._evaluate()
            self.passed.at.append(self._clock() - self._started)
            self.passed.accuracies.append(found.accuracy)
            self.passed = self.passed._replace(images=found.images)
        self._began = self._clock()


def goal(ranks: list[Passed], epoch_images: int, target: float | None, throughput: float, finite: bool = True) -> Goal:
    """The figures of a run from what each of its ranks saw; `throughput` is of the timed steps, images/s.

    `finite`: whether every loss that was read was finite.
    """
    epochs = [max(times) for times in zip(*(rank.epochs for rank in ranks), strict=True)]
    at = [max(times) for times in zip(*(rank.at for rank in ranks), strict=True)]
    accuracies, images = ranks[0].accuracies, ranks[0].images
    later = epochs[1:] or epochs  # the first has compilation in it, where there is another
    first = None if target is None else next((i for i, one in enumerate(accuracies) if one >= target), None)
    outcome = "no target" if target is None else "not reached" if first is None else "reached"
    why = NO_TARGET if target is None else _missed(accuracies, target, finite)
    none = None if accuracies else NO_TARGET
    return Goal(
        clock=CLOCK,
        epoch_images=Figure(epoch_images, "images"),
        epoch_time=Figure(statistics.median(later) if later else epoch_images / throughput, "s"),
        epoch_basis="measured" if later else "extrapolated",
        target=Figure(target, "fraction", reason=None if target is not None else NO_TARGET),
        outcome=outcome,
        time_to_target=Figure(None, "s", reason=why) if first is None else Figure(at[first], "s"),
        epochs_to_target=Figure(None, "epochs", reason=why) if first is None else Figure(first + 1, "epochs"),
        evaluated_images=Figure(images, "images", reason=none),
        evaluated_at=Series(tuple(at), "s", reason=none),
        accuracies=Series(tuple(accuracies), "fraction", reason=none),
    )


def _missed(accuracies: list[float], target: float, finite: bool) -> str:
    best = max(accuracies)
    loss = "" if finite else "; the training loss was not finite"
    return (
        f"not reached: the best of {len(accuracies)} evaluations was {best:.4f} after epoch "
        f"{accuracies.index(best) + 1}, the target is {target:g}{loss}"
    )


def check_counted(seen: int, expected: int) -> None:
    """Raise `DataError` unless an evaluation saw every held-out image once."""
    if seen != expected:
        raise DataError(
            f"the evaluation counted {seen} images over all ranks, and the held-out set has {expected}: its accuracy "
            "is that of other data"
        )
