"""Ranks that issue different collectives get the same typed error, and the group goes on (T03, T04)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from accel.collective import Collective
from accel.errors import ArgumentError, CollectiveError, CollectiveMismatch, CollectiveTimeout
from accel.testing.ranks import RankPool
from accel_cpu.device import CpuDevice
from accel_cpu.transport import CpuTransport
from tests.multiproc.jobs import collective, control_plane


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def _usable(c: Collective) -> None:
    c.barrier()
    ones = torch.ones(3)
    c.all_reduce(ones)
    assert ones.tolist() == [c.world_size] * 3


CASES: dict[str, tuple[Callable[[Collective], object], str]] = {
    "dtype": (lambda c: c.all_reduce(torch.ones(4, dtype=torch.int32 if c.rank else torch.float32)), "int32"),
    "op": (lambda c: c.all_reduce(torch.ones(4), "max" if c.rank else "sum"), "op=max"),
    "length": (lambda c: c.all_reduce(torch.ones(3 if c.rank else 2)), r"shape=\[3\]"),
    "shape": (lambda c: c.all_reduce(torch.ones((3, 2) if c.rank else (2, 3))), r"shape=\[3, 2\]"),
    "gather": (lambda c: c.all_gather(torch.ones(5 if c.rank else 4)), r"all_gather\(dtype=float32, shape=\[5\]\)"),
    "kind": (lambda c: c.broadcast(torch.ones(2)) if c.rank else c.all_reduce(torch.ones(2)), "src=0"),
    "root": (lambda c: c.broadcast(torch.ones(2), src=c.rank), "src=1"),
    "list": (lambda c: c.all_reduce_coalesced([torch.ones(2)] * (6 + c.rank)), "7 tensors"),
}


def _mismatch(case: str, check: str) -> str:
    call, said = CASES[case]
    with collective(check=check) as c:
        _usable(c)
        with pytest.raises(CollectiveMismatch, match=said) as caught:
            call(c)
        assert "rank 0: " in str(caught.value)
        assert "rank 1: " in str(caught.value)
        _usable(c)
        return str(caught.value)


@pytest.mark.parametrize("check", ["first", "every"])
@pytest.mark.parametrize("case", CASES)
def test_a_mismatch_raises_one_error_on_both_ranks_and_the_group_goes_on(
    pool: RankPool, case: str, check: str
) -> None:  # T03
    left, right = pool.run(_mismatch, case, check)
    assert left == right


def _known_against_new(kind: str) -> str:
    with collective() as c:
        known = torch.ones(4)
        call = {
            "all_reduce": lambda t: c.all_reduce(t, "mean"),
            "all_gather": c.all_gather,
            "reduce_scatter": c.reduce_scatter,
            "all_to_all": c.all_to_all,
            "broadcast": lambda t: c.broadcast(t, src=1),
            "coalesced": lambda t: c.all_reduce_coalesced([t, t + 1]),
        }[kind]
        call(known)
        _usable(c)
        with pytest.raises(CollectiveMismatch) as caught:
            call(known if c.rank == 0 else torch.ones(6))  # rank 0 sends at once; rank 1 has something new
        for _ in range(3):
            _usable(c)
        return str(caught.value)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "coalesced"])
def test_a_known_operation_against_a_new_one_raises_on_both_ranks(pool: RankPool, kind: str) -> None:  # T03
    left, right = pool.run(_known_against_new, kind)
    assert left == right
    assert "[6]" in left


def _every_sees_known_ones() -> str:
    with collective(check="every") as c:
        gradient, metric = torch.full((1,), 5.0), torch.ones((), dtype=torch.float32)
        c.all_reduce(gradient, "mean")
        c.all_reduce(metric, "mean")
        with pytest.raises(CollectiveMismatch, match="number 3") as caught:
            c.all_reduce(gradient if c.rank == 0 else metric, "mean")
        assert (gradient.item(), metric.item()) == (5.0, 1.0)
        _usable(c)
        return str(caught.value)


def test_check_every_tells_a_leftover_gradient_from_a_metric(pool: RankPool) -> None:  # T04
    left, right = pool.run(_every_sees_known_ones)
    assert left == right


def _extra_call() -> None:
    with collective(timeout=2.0) as c:
        t = torch.ones(1)
        c.all_reduce(t)
        c.barrier()
        if c.rank == 0:
            began = time.monotonic()
            with pytest.raises(CollectiveTimeout, match=r"no sign of rank 1"):
                c.all_gather(t)
            assert time.monotonic() - began < 3.0
            with pytest.raises(CollectiveError, match="did not take part"):
                c.all_reduce(t)
        else:
            time.sleep(3.0)


def test_an_extra_operation_on_one_rank_ends_at_the_time_limit(pool: RankPool) -> None:  # T04
    pool.run(_extra_call)


def _slow_but_right() -> None:
    with collective() as c:
        t = torch.ones(1)
        for _ in range(3):
            c.all_reduce(t)
            if c.rank == 1:
                time.sleep(0.8)
        c.all_gather(t)
        assert t.item() == 8.0


def test_a_slow_rank_is_waited_for(pool: RankPool) -> None:
    pool.run(_slow_but_right)


def _groups() -> None:
    with collective() as c:
        pair = c.new_group([0, 2])
        c.all_reduce(torch.ones(2))
        if c.rank != 1:
            with pytest.raises(CollectiveMismatch, match="group '1: ranks 0, 2'"):
                c.all_reduce(torch.ones(2 + c.rank), group=pair)
            c.all_reduce(torch.ones(2), group=pair)
        with pytest.raises(CollectiveMismatch, match=r"rank 0, 2: .*rank 1|ranks 0, 2: .*rank 1"):
            c.all_reduce(torch.ones(2 if c.rank == 1 else 3), "min")
        ones = torch.ones(2)
        c.all_reduce(ones)
        assert ones.tolist() == [3.0, 3.0]


def test_groups_are_checked_by_themselves() -> None:
    with RankPool(3) as three:
        three.run(_groups)


def _two_sent_one_new() -> None:
    with collective() as c:
        c.all_reduce(torch.ones(2))
        with pytest.raises(CollectiveMismatch):
            c.all_reduce(torch.ones(5 if c.rank == 2 else 2))
        ones = torch.ones(2)
        c.all_reduce(ones)
        assert ones.tolist() == [3.0, 3.0]


def test_one_new_operation_among_three_ranks_leaves_the_group_usable() -> None:
    with RankPool(3) as three:
        three.run(_two_sent_one_new)


def _unknown_mode() -> None:
    with control_plane() as control:
        control.barrier()  # a rank that leaves at once would break the connections that others still make
        with pytest.raises(ArgumentError, match="check is 'sometimes'"):
            Collective.connect(CpuTransport(), CpuDevice(), control, timeout=30.0, check="sometimes")


def test_unknown_check_mode_is_refused(pool: RankPool) -> None:
    pool.run(_unknown_mode)
