"""Advice on loader workers and pinned memory from what was tried."""

from __future__ import annotations

import pytest

from accel.bench._input import advice, chosen, counts, unknown
from accel.records import Figure, InputTrial


def trial(workers: int, rate: float, share: float = 0.0, pinned: bool = False) -> InputTrial:
    return InputTrial(Figure(workers, "workers"), pinned, Figure(rate, "images/s"), Figure(share, "fraction"))


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1, [0, 1]), (2, [0, 1, 2]), (4, [0, 1, 2, 4]), (6, [0, 1, 2, 4, 6]), (16, [0, 1, 2, 4, 8, 16])],
)
def test_worker_counts_double_up_to_the_cores(cores: int, expected: list[int]) -> None:
    assert counts(cores) == expected


def test_more_workers_are_advised_only_where_they_are_faster() -> None:
    trials = [trial(0, 50, 0.5), trial(1, 90, 0.1), trial(2, 99, 0.02), trial(4, 100, 0.01)]
    assert chosen(trials) is trials[2]
    found = advice(trials, "nothing to copy")
    assert (found.workers.value, found.pinned) == (2, False)
    assert found.advice == (
        "use --workers 2; 99 images/s, 2% of the time spent waiting for data; without workers 50 images/s, 50% "
        "waiting; 4 workers give 1.0% more, which is noise; memory cannot be pinned (nothing to copy)"
    )
    assert chosen([trial(0, 100), trial(4, 101)]).workers.value == 0


def test_pinned_memory_is_advised_where_it_is_faster() -> None:
    tried = [trial(0, 50, pinned=True), trial(4, 100, pinned=True), trial(4, 90)]
    assert advice(tried, None).advice.startswith("use --workers 4 --pin; 100 images/s")
    assert advice([*tried, trial(4, 110)], None).advice.startswith("use --workers 4 --no-pin; 110 images/s")


def test_an_input_that_stays_too_slow_is_said_to_be() -> None:
    assert "the input still sets the pace" in advice([trial(0, 50, 0.5), trial(2, 80, 0.4)], "none").advice


def test_where_nothing_can_be_tried_there_is_a_reason() -> None:
    found = unknown("synthetic data is one batch")
    assert (found.trials, found.workers.value, found.pinned) == ((), None, None)
    assert found.advice == "nothing was tried: synthetic data is one batch"
