"""Contract of loops over data on two ranks: one number of steps, every sample once.

Each test runs one top-level function in two warm ranks; what it returns comes back by rank.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from accel.errors import (
    ArgumentError,
)
from accel.testing.models import mlp, sgd, values
from accel.testing.ranks import RankPool
from accel.testing.training import init


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter([torch.full((1,), 5.0)] * self.count)


def _uneven(name: str, sized: bool, counts: tuple[int, int]) -> Any:
    """One rank has more batches than the other and a metric is reduced afterwards: neither may meet the other's
    collective."""
    with init(name, timeout=10.0) as s:
        linear = nn.Linear(1, 1, bias=False)
        model, optimizer = s.prepare(linear, sgd(linear, 0.0))
        gradients = []
        optimizer.register_step_pre_hook(
            lambda opt, a, k: gradients.append(opt.param_groups[0]["params"][0].grad.clone())
        )
        loader: Any = [torch.full((1,), 5.0)] * counts[s.rank] if sized else Stream(counts[s.rank])
        for x in s.batches(loader, short="keep"):
            s.backward(model(x.reshape(1, 1)).sum())
            s.step(optimizer)
        metric = torch.ones(1, device=s.device)
        s.backend.collective.all_reduce(metric, "mean")
        return [float(g) for g in gradients], float(metric), s.dropped_batches


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("counts", [(3, 2), (2, 3), (0, 2), (1, 1), (6, 2)])
def test_ranks_agree_on_the_number_of_steps(
    ranks: RankPool, backend_name: str, sized: bool, counts: tuple[int, int]
) -> None:  # T04
    steps = min(counts)
    for rank, (gradients, metric, dropped) in enumerate(ranks.run(_uneven, backend_name, sized, counts)):
        assert gradients == [5.0] * steps
        assert metric == 1.0
        if sized:
            assert dropped == counts[rank] - steps
        else:  # how much a stream still holds is unknown; what was taken from it in vain is counted
            assert (dropped > 0) is (counts[rank] > steps)


def _evaluate(name: str, count: int) -> Any:
    with init(name) as s:
        dataset = TensorDataset(torch.arange(float(count)))
        meter, seen = s.meter(), []
        for (x,) in s.batches(
            DataLoader(dataset, batch_size=2, sampler=s.sampler(dataset, shuffle=False)), train=False
        ):
            meter.add(weight=len(x), right=(x > 0).float().mean())
            seen.append(x)
        mine = torch.cat(seen) if seen else torch.zeros(0, device=s.device)
        return s.gather(mine).tolist(), meter.read(), s.mean(float(s.rank), weight=s.rank + 1), s.any(s.rank == 1)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_evaluation_counts_every_sample_once(ranks: RankPool, backend_name: str, count: int) -> None:  # T19
    for seen, metrics, mean, flag in ranks.run(_evaluate, backend_name, count):
        assert sorted(seen) == list(range(count))
        assert metrics == {"right": pytest.approx((count - 1) / count)}
        assert mean == pytest.approx(2 / 3)
        assert flag is True


def _unsharded(name: str) -> str:
    with init(name) as s:
        try:
            s.batches(DataLoader(TensorDataset(torch.arange(4.0)), shuffle=True))
        except ArgumentError as error:
            return str(error)
    return "accepted"


def test_loader_that_is_not_sharded_is_refused(ranks: RankPool, backend_name: str) -> None:
    for said in ranks.run(_unsharded, backend_name):
        assert "session.sampler" in said


def _streams(name: str) -> Any:
    with init(name, seed=5) as s:
        model = s.prepare(mlp(seed=s.rank))
        masks = nn.functional.dropout(torch.ones(64, device=s.device)).tolist()
        return [v.tolist() for v in values(s.unwrap(model))], masks


def test_ranks_start_from_one_model_and_draw_different_masks(ranks: RankPool, backend_name: str) -> None:  # T61
    (model_a, mask_a), (model_b, mask_b) = ranks.run(_streams, backend_name)
    assert model_a == model_b
    assert mask_a != mask_b
    assert ranks.run(_streams, backend_name)[1][1] == mask_b
