"""Ring, tree and parameter server sum what the fabric's own all_reduce sums; their models keep their order."""

from __future__ import annotations

import pytest
import torch

from accel.bench.algorithms import ALGORITHMS, modelled
from accel.testing.ranks import run_ranks
from tests.multiproc.jobs import collective


def _sums(elements: list[int]) -> None:
    with collective(timeout=60.0) as c:
        for size in elements:
            for sum_up in ALGORITHMS.values():
                t = torch.arange(float(size)) + c.rank
                want = t.clone()
                c.all_reduce(want)
                sum_up(c, t)
                assert torch.equal(t, want)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_algorithm_gives_the_sum_of_all_ranks(ranks: int) -> None:
    run_ranks(_sums, ranks, [1, 2, 7, 1000], timeout=120)


def test_models_meet_at_two_ranks_and_part_beyond() -> None:
    size, fast = 1e8, 1e9
    assert modelled("tree", 2, size, 0.0, fast) == modelled("server", 2, size, 0.0, fast) == 2 * size / fast
    assert modelled("ring", 2, size, 0.0, fast) == size / fast
    assert modelled("ring", 1, size, 1.0, fast) == 0.0
    for ranks in (4, 64, 4096):
        times = [modelled(name, ranks, size, 0.0, fast) for name in ("ring", "tree", "server")]
        assert times == sorted(times)
    assert modelled("ring", 64, size, 0.0, fast) == pytest.approx(2 * 63 / 64 * size / fast)
    assert modelled("server", 64, size, 0.0, fast) / modelled("ring", 64, size, 0.0, fast) == pytest.approx(64)
    # of tiny tensors latency is all, and the ring has most of it
    assert modelled("ring", 64, 1, 1e-4, fast) > modelled("tree", 64, 1, 1e-4, fast)
