"""Time to an epoch and to an accuracy, against a clock that is told what to show."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.bench._goal import Epochs, Evaluated, Passed, check_counted, goal
from accel.errors import DataError
from accel.records._consistent import _check_goal
from accel.records._record import _plain


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def trained(epochs: list[float], evaluations: list[tuple[float, float]], start: float = 7.0, steps: int = 4) -> Passed:
    """A run whose start takes `start` s, its epochs and (seconds, accuracy) of evaluations as given."""
    clock = Clock()
    answers = iter(evaluations)

    def evaluate() -> Evaluated:
        seconds, accuracy = next(answers)
        clock.now += seconds
        return Evaluated(accuracy, 50)

    found = Epochs(clock.now, steps, evaluate if evaluations else None, clock)
    clock.now += start
    found.begin()
    for number, seconds in enumerate(epochs):
        for step in range(steps):
            clock.now += seconds / steps
            found.after(number * steps + step + 1)
    return found.passed


def test_the_time_to_the_target_has_everything_in_it_and_an_epoch_no_evaluation() -> None:
    passed = trained([30.0, 10.0, 12.0], [(1.0, 0.5), (2.0, 0.91), (1.0, 0.8)])
    found = goal([passed], 1024, 0.9, 100.0)
    assert (found.outcome, found.epochs_to_target.value) == ("reached", 2)
    assert found.time_to_target.value == pytest.approx(7 + 30 + 1 + 10 + 2)
    assert found.evaluated_at.values == pytest.approx((38.0, 50.0, 63.0))
    assert found.epoch_time.value == pytest.approx(11.0)  # the first one has compilation in it
    assert (found.epoch_basis, found.evaluated_images.value) == ("measured", 50)


def test_the_slowest_rank_counts() -> None:
    fast, slow = trained([10.0], [(1.0, 0.95)]), trained([10.0], [(1.0, 0.95)], start=9.0)
    assert goal([fast, slow], 1024, 0.9, 100.0).time_to_target.value == pytest.approx(20.0)


def test_a_target_that_is_not_reached_is_a_result_with_a_reason_and_no_time() -> None:
    passed = trained([10.0, 10.0], [(1.0, 0.5), (1.0, 0.4)])
    found = goal([passed], 1024, 0.9, 100.0)
    assert (found.outcome, found.time_to_target.value, found.epochs_to_target.value) == ("not reached", None, None)
    assert found.time_to_target.reason == (
        "not reached: the best of 2 evaluations was 0.5000 after epoch 1, the target is 0.9"
    )
    lost = goal([passed], 1024, 0.9, 100.0, finite=False)
    assert str(lost.time_to_target.reason).endswith("; the training loss was not finite")


def test_an_epoch_that_was_not_run_is_extrapolated_and_said_to_be() -> None:
    found = goal([trained([], [])], 1024, None, 100.0)
    assert (found.epoch_basis, found.epoch_time.value, found.outcome) == ("extrapolated", 10.24, "no target")
    assert "--target" in str(found.time_to_target.reason)
    one = goal([trained([30.0], [])], 1024, None, 100.0)
    assert (one.epoch_basis, one.epoch_time.value) == ("measured", pytest.approx(30.0))


times = st.floats(1e-3, 1e4)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(times, times, st.floats(0, 1)), min_size=1, max_size=6), st.floats(0.01, 1), st.integers(1, 5)
)
def test_what_is_told_never_contradicts_itself(
    run: list[tuple[float, float, float]], target: float, steps: int
) -> None:
    passed = trained([one for one, _, _ in run], [(two, three) for _, two, three in run], steps=steps)
    found = goal([passed], 8, target, 1.0)
    _check_goal(_plain(found), "here")
    first = next((i for i, (_, _, accuracy) in enumerate(run) if accuracy >= target), None)
    if first is None:
        assert found.time_to_target.value is None
    else:
        spent = 7.0 + sum(one + two for one, two, _ in run[: first + 1])
        assert found.time_to_target.value == pytest.approx(spent)


def test_an_evaluation_that_counts_another_number_of_images_is_an_error() -> None:  # T19
    check_counted(10, 10)
    with pytest.raises(DataError, match="counted 12 images over all ranks, and the held-out set has 10"):
        check_counted(12, 10)
