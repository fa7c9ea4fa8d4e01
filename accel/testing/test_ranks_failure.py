"""Contract between ranks when one of them fails, leaves or is late.

Each test runs one top-level function in two warm ranks; what it returns comes back by rank.
"""

from __future__ import annotations

import torch

from accel.errors import (
    CollectiveError,
)
from accel.testing.ranks import RankPool
from accel.testing.training import init


def _leaves(name: str) -> str:
    try:
        with init(name, timeout=20.0) as s:
            if s.rank == 1:
                raise ValueError("data is broken")
            s.backend.collective.all_reduce(torch.ones(1, device=s.device))
    except (CollectiveError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_exception_on_one_rank_reaches_the_others(ranks: RankPool, backend_name: str) -> None:  # T39
    first, second = ranks.run(_leaves, backend_name)
    assert second == "ValueError: data is broken"
    assert first.startswith("CollectiveError")
    assert "rank 1" in first


def _late(name: str) -> str:
    with init(name, timeout=20.0) as s:
        try:
            if s.rank == 0:
                s.barrier(timeout=1.0)
            return "passed"
        except CollectiveError as error:
            return str(error)


def test_barrier_names_the_rank_that_did_not_come(ranks: RankPool, backend_name: str) -> None:  # T38
    first, _ = ranks.run(_late, backend_name)
    assert "rank 1" in first
    assert "1 s" in first
