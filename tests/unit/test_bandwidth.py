"""nccl-tests' conventions of size and bandwidth, the fit of latency and bandwidth, the bucket planner."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel._buckets import buckets
from accel.bench import bandwidth
from accel.errors import ArgumentError

GB = 10**9


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_bus_bandwidth_of_one_gigabyte_in_one_second(n: int) -> None:  # T30
    assert bandwidth.algbw(GB, 1.0) == 1.0
    once = (n - 1) / n  # 0 for one rank, and no division by zero
    assert bandwidth.busbw("all_reduce", GB, 1.0, n) == pytest.approx(2 * once)
    for dealt in ("all_gather", "reduce_scatter", "all_to_all"):
        assert bandwidth.busbw(dealt, GB, 1.0, n) == pytest.approx(once)
    for whole in ("broadcast", "send_recv"):
        assert bandwidth.busbw(whole, GB, 1.0, n) == (0.0 if n == 1 else 1.0)


def test_the_size_of_a_dealt_operation_is_its_total() -> None:  # T30: each of 4 ranks gives 1 KiB to an all_gather of 4
    assert bandwidth.aligned("all_gather", 4096, 4, 4) == 4096
    assert bandwidth.aligned("all_gather", 8, 4, 4) == 16  # one element a rank at least
    assert bandwidth.aligned("all_reduce", 10, 4, 4) == 8
    assert bandwidth.aligned("reduce_scatter", 4100, 4, 4) == 4096


def test_sizes_go_up_by_the_factor_and_end_at_the_largest() -> None:
    assert bandwidth.sizes(8, 1 << 30, 8) == [8 << 3 * i for i in range(10)]
    assert bandwidth.sizes(8, 100, 4) == [8, 32, 100]
    assert bandwidth.sizes(8, 8, 2) == [8]
    assert [bandwidth.parse_size(text) for text in ("8", "4K", "16MiB", "1G", "2kb")] == [
        8,
        4096,
        1 << 24,
        1 << 30,
        2048,
    ]
    assert [bandwidth.words(size) for size in (8, 4096, 1 << 24, 1 << 30, 1500)] == ["8", "4K", "16M", "1G", "1500"]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: bandwidth.sizes(0, 8, 2), "sizes go from 0"),
        (lambda: bandwidth.sizes(16, 8, 2), "sizes go from 16 to 8"),
        (lambda: bandwidth.sizes(8, 16, 1), "factor is 1"),
        (lambda: bandwidth.factor("scan", 2), "operation is 'scan'; expected one of all_reduce"),
        (lambda: bandwidth.factor("broadcast", 0), "ranks is 0"),
        (lambda: bandwidth.algbw(8, 0.0), "clock"),
        (lambda: bandwidth.fit([(8, 1.0), (8, 2.0)]), "needs two sizes"),
        (lambda: bandwidth.parse_size("1T"), "size is '1T'"),
        (lambda: bandwidth.parse_size("0"), "size is '0'"),
        (lambda: bandwidth.parse_size("-4K"), "size is '-4K'"),
    ],
)
def test_bad_values_are_refused(call, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        call()


def test_a_fit_finds_the_latency_and_bandwidth_that_made_the_points() -> None:
    draw = random.Random(0)
    exact = [(size, 50e-6 + size / 2e9) for size in bandwidth.sizes(8, 1 << 30, 4)]
    found = bandwidth.fit(exact)
    assert (found.latency, found.bandwidth) == (pytest.approx(50e-6), pytest.approx(2e9))
    assert found.worst < 1e-6
    noisy = bandwidth.fit([(size, seconds * draw.uniform(0.9, 1.1)) for size, seconds in exact])
    assert noisy.latency == pytest.approx(50e-6, rel=0.1)
    assert noisy.bandwidth == pytest.approx(2e9, rel=0.1)
    assert 0.01 < noisy.worst < 0.25


def test_a_fit_is_never_negative() -> None:
    flat = bandwidth.fit([(8, 2.0), (16, 1.0)])
    assert flat.bandwidth is None
    assert flat.latency > 0
    steep = bandwidth.fit([(8, 1e-6), (16, 10.0)])
    assert steep.latency == 0.0
    assert steep.bandwidth is not None and steep.bandwidth > 0


@given(st.lists(st.integers(0, 100), max_size=40), st.integers(1, 120))
def test_buckets_hold_everything_in_order_and_no_more_than_the_limit(sizes: list[int], limit: int) -> None:
    planned = buckets(sizes, limit)
    assert [index for bucket in planned for index in bucket] == list(range(len(sizes)))
    for bucket in planned:
        assert len(bucket) == 1 or sum(sizes[index] for index in bucket) <= limit
    for one, two in itertools.pairwise(planned):  # none could have taken the next one too
        assert sum(sizes[index] for index in [*one, two[0]]) > limit


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.9, 1.05, "within"), (0.9, 1.051, "undecided"), (1.05, 1.2, "undecided"), (1.051, 1.2, "beyond")],
)
def test_a_verdict_needs_the_whole_interval(low: float, high: float, verdict: str) -> None:
    assert bandwidth.judged(low, high) == verdict
