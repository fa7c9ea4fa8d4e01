"""Contract of training on two ranks: it equals one process with the whole batch.

Each test runs one top-level function in two warm ranks; what it returns comes back by rank.
"""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import nn

import accel
from accel.errors import (
    AccelError,
    CollectiveError,
)
from accel.testing.models import assert_close, convnet, data, mlp, reference, sgd, values
from accel.testing.ranks import RankPool
from accel.testing.training import adversaries, adversaries_by_hand, init, loss_of


def _halves(name: str, steps: int, accumulate: int, **arguments: Any) -> list[torch.Tensor]:
    """Each rank takes its half of every batch of 8."""
    with init(name, accumulate=accumulate, **arguments) as s:
        model = mlp(seed=s.rank)  # prepare makes rank 0's hold everywhere
        called, optimizer = s.prepare(model, sgd(model, momentum=0.9))
        x, y = data(8)
        parts = list(zip(x.chunk(2 * accumulate), y.chunk(2 * accumulate), strict=True))
        mine = parts[s.rank * accumulate : (s.rank + 1) * accumulate]
        for xb, yb in s.batches(mine * steps):
            s.backward(loss_of(called, xb, yb))
            s.step(optimizer)
        return values(s.unwrap(called))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_ranks_equal_one_process_with_the_whole_batch(
    ranks: RankPool, backend_name: str, accumulate: int
) -> None:  # T24
    expected = values(reference([[data(8)]] * 5, momentum=0.9))
    for got in ranks.run(_halves, backend_name, 5, accumulate):
        assert_close(got, expected)


def test_clipping_uses_the_norm_of_the_averaged_gradient(ranks: RankPool, backend_name: str) -> None:  # T24
    expected = values(reference([[data(8)]] * 3, momentum=0.9, clip=0.05))
    for got in ranks.run(_run_clipped, backend_name):
        assert_close(got, expected)


def _run_clipped(name: str) -> list[torch.Tensor]:
    return _halves(name, 3, 1, clip_norm=0.05)


def _weighted(name: str) -> float:
    with init(name) as s:
        linear = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(linear.weight)
        model, optimizer = s.prepare(linear, sgd(linear, 1.0))
        x = torch.ones(3, 1) if s.rank == 0 else torch.full((1, 1), 5.0)
        for (batch,) in s.batches([(x,)]):
            s.backward((model(batch) - 1).square().mean(), weight=len(batch))
            s.step(optimizer)
        return float(s.unwrap(model).weight.item())


def test_weights_make_uneven_batches_the_mean_over_all_samples(ranks: RankPool, backend_name: str) -> None:  # T20
    assert ranks.run(_weighted, backend_name) == [pytest.approx(4.0)] * 2


def _unusual(name: str, case: str) -> list[torch.Tensor]:
    """Windows that DDP alone would not reduce."""
    with init(name, accumulate=3) as s:
        model = mlp()
        called, optimizer = s.prepare(model, sgd(model))
        x, y = data(8)
        xb, yb = (t.chunk(2)[s.rank].to(s.device) for t in (x, y))
        for _ in range(2):
            if case == "ended early":
                s.backward(loss_of(called, xb, yb))
                s.step(optimizer, final=True)
                continue
            s.accumulate = 1
            if case == "wrapper not called":
                s.backward(loss_of(s.unwrap(called), xb, yb))
            elif case == "two backwards through one forward":
                out = called(xb)
                half = nn.functional.mse_loss(out, yb) / 2
                loss = half * 1
                s.backward(_retained(half))
                s.backward(loss)
            elif case == "two forwards":
                for _ in range(2):
                    s.backward(loss_of(called, xb, yb) / 2)
            s.step(optimizer)
        return values(s.unwrap(called))


def _retained(loss: torch.Tensor) -> torch.Tensor:
    """A loss whose graph outlives its backward, as `backward(retain_graph=True)` does."""
    kept: Any = loss * 1
    kept.backward = lambda: torch.autograd.backward(kept, retain_graph=True)
    return cast("torch.Tensor", kept)


@pytest.mark.parametrize(
    "case", ["ended early", "wrapper not called", "two backwards through one forward", "two forwards"]
)
def test_gradients_are_averaged_once_however_the_window_was_filled(
    ranks: RankPool, backend_name: str, case: str
) -> None:
    expected = values(reference([[data(8)]] * 2))
    for got in ranks.run(_unusual, backend_name, case):
        assert_close(got, expected)


def _adversaries(name: str) -> list[torch.Tensor]:
    with init(name) as s:
        return adversaries(s)


def test_alternating_models_equal_one_process_with_both_batches(ranks: RankPool, backend_name: str) -> None:
    expected = adversaries_by_hand(2)
    for got in ranks.run(_adversaries, backend_name):
        assert_close(got, expected)


def _thaws(name: str) -> list[torch.Tensor]:
    with init(name) as s:
        model = mlp()
        model[0].requires_grad_(False)
        called, optimizer = s.prepare(model, sgd(model))
        for step, (x, y) in enumerate(s.batches([[t.chunk(2)[s.rank] for t in data(8, seed=i)] for i in range(4)])):
            if step == 2:
                s.unwrap(called)[0].requires_grad_(True)
            s.backward(loss_of(called, x, y))
            s.step(optimizer)
        return values(s.unwrap(called))


def test_layer_unfrozen_after_prepare_is_averaged_too(ranks: RankPool, backend_name: str) -> None:
    first, second = ranks.run(_thaws, backend_name)
    assert_close(first, second, 0)
    assert not torch.equal(first[0], values(mlp())[0])


def _misses(name: str, case: str) -> str:
    """Rank 1 leaves out a backward (or both ranks a parameter) that the other rank's reduction waits for."""
    said = []
    try:
        with init(name, accumulate=2, timeout=6.0) as s:
            model = mlp()
            called, optimizer = s.prepare(model, sgd(model))
            try:
                for i, (x, y) in enumerate(s.batches([data(4, seed=i) for i in range(4)])):
                    if case == "frozen later" and i == 2:
                        s.unwrap(called)[0].requires_grad_(False)
                    loss = loss_of(called, x, y)
                    if not (case == "no backward" and i == 3 and s.rank == 1):
                        s.backward(loss)
                    s.step(optimizer)
            except AccelError as error:
                said.append(f"{type(error).__name__}: {error}")
    except AccelError as error:  # a fabric that orders streams tells it where the host next waits
        said.append(f"{type(error).__name__}: {error}")
    return said[0] if said else "nothing"


def test_backward_left_out_on_one_rank_is_an_error_on_both(ranks: RankPool, backend_name: str) -> None:
    first, second = ranks.run(_misses, backend_name, "no backward")
    assert first.startswith("Collective")
    assert "Call backward equally often on every rank" in second


def test_layer_frozen_after_prepare_is_named_with_what_to_do(ranks: RankPool, backend_name: str) -> None:
    for said in ranks.run(_misses, backend_name, "frozen later"):
        assert said.startswith("ModelError: parameter '0.weight' got no gradient")
        assert "unused_parameters=True" in said


def _fails_midway(name: str, at: int) -> str:
    try:
        with init(name, timeout=4.0) as s:
            model = mlp()
            called, optimizer = s.prepare(model, sgd(model))
            for i, (x, y) in enumerate(s.batches([data(4)] * 4)):
                if s.rank == 1 and i == at:
                    raise ValueError("data is broken")
                s.backward(loss_of(called, x, y))
                s.step(optimizer)
    except (CollectiveError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize("at", [1, 2])  # DDP waits in the second forward, and in every backward
def test_failure_of_another_rank_is_named_wherever_ddp_waits_for_it(
    ranks: RankPool, backend_name: str, at: int
) -> None:  # T39
    first, second = ranks.run(_fails_midway, backend_name, at)
    assert second == "ValueError: data is broken"
    assert first == "CollectiveError: rank 1 aborted: ValueError: data is broken"


def _overflow(name: str, shared: bool) -> Any:
    """Rank 0 gets an inf. Not shared: in a parameter that the user keeps out of DDP, so no sum carries it to rank 1."""
    with init(name, precision="fp16", loss_scale=accel.LossScale(init=4.0)) as s:
        model = mlp()
        if not shared:
            ignored: Any = model  # DDP's own way to leave parameters out
            ignored._ddp_params_and_buffers_to_ignore = ["0.weight", "0.bias"]
        called, optimizer = s.prepare(model, sgd(model))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        x, y = (t.to(s.device) for t in data(4))
        loss = loss_of(called, x, y)
        if s.rank == 0:
            loss = loss + s.unwrap(called)[0].weight.sum() * math.inf
        s.backward(loss)
        result = s.step(optimizer, scheduler=scheduler)
        state = s._scaler.state_dict()
        return (
            result.skipped,
            state["scale"],
            optimizer.param_groups[0]["lr"],
            [v.tolist() for v in values(s.unwrap(called))],
        )


@pytest.mark.parametrize("shared", [True, False])
def test_overflow_on_one_rank_skips_the_step_on_both(ranks: RankPool, backend: Any, shared: bool) -> None:  # T13
    if not backend.capabilities()["precision.fp16"].available:
        pytest.skip(f"unsupported by the capability table: {backend.capabilities()['precision.fp16'].why}")
    first, second = ranks.run(_overflow, backend.name, shared)
    assert first == second
    assert first[:3] == (True, 2.0, 0.1)


def _norm_layers(name: str, buffers: str) -> Any:
    with init(name, timeout=5.0) as s:
        model = convnet()
        called, optimizer = s.prepare(model, sgd(model), buffers=buffers)
        for (x,) in s.batches([(torch.full((4, 3, 8, 8), float(s.rank)) + torch.randn(4, 3, 8, 8),)]):
            s.backward(called(x).square().mean())
            s.step(optimizer)
        norm = s.unwrap(called)[1]
        evaluated = None
        if s.is_main:  # evaluation on one rank only must need no other
            called.eval()
            with torch.no_grad():
                for (x,) in s.batches([(torch.ones(2, 3, 8, 8),)], train=False):
                    evaluated = float(called(x).sum())
        s.barrier()
        return norm.running_mean.tolist(), int(norm.num_batches_tracked), evaluated


def test_statistics_are_equal_and_evaluation_needs_no_collective(ranks: RankPool, backend_name: str) -> None:  # T44
    for buffers, equal in (("rank0", True), ("mean", True), ("local", False)):
        first, second = ranks.run(_norm_layers, backend_name, buffers)
        assert (first[0] == second[0]) is equal, buffers
        assert first[1] == second[1] == 1
        assert first[2] is not None


def _frozen(name: str) -> Any:
    with init(name) as s:
        teacher = convnet(seed=s.rank).requires_grad_(False)
        called = s.prepare(teacher)
        return [v.tolist() for v in values(called)]


def test_frozen_model_becomes_rank_0s_too(ranks: RankPool, backend_name: str) -> None:
    first, second = ranks.run(_frozen, backend_name)
    assert first == second


def _quits(name: str) -> str:
    try:
        with init(name, timeout=20.0) as s:
            if s.rank == 1:
                raise SystemExit(7)
            s.backend.collective.all_reduce(torch.ones(1, device=s.device))
    except CollectiveError as error:
        return str(error)
    except SystemExit:
        return "quit"
    return "nothing"


def test_exit_with_an_error_code_on_one_rank_reaches_the_others(ranks: RankPool, backend_name: str) -> None:  # T39
    first, second = ranks.run(_quits, backend_name)
    assert second == "quit"
    assert "rank 1" in first
