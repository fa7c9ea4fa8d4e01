"""Contract between ranks: the same answer on all of them, at the same steps, or an error on all of them.

Each test runs one top-level function in two warm ranks; what it returns comes back by rank.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import accel
from accel._lowering import DTYPES
from accel.errors import AccelError, ArgumentError, CollectiveError
from accel.testing.models import assert_close, convnet, data, mlp, reference, sgd, values
from accel.testing.ranks import RankPool
from accel.testing.test_session import adversaries, adversaries_by_hand
from accel.transport import REDUCE_OPS


def init(name: str, **arguments: Any) -> Any:
    return accel.init(backend=name, **{"timeout": 30.0, **arguments})


def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


# -- the data plane ----------------------------------------------------------------------------------------------------


def _reduce_table(name: str) -> dict[str, Any]:
    """Every dtype x op cell: what came out, or which error."""
    found: dict[str, Any] = {}
    with init(name) as s:
        table = s.backend.capabilities()
        for dtype, op in itertools.product(DTYPES, REDUCE_OPS):
            t = torch.tensor([s.rank + 1.0, 2.0, 0.0 if s.rank else 3.0]).to(dtype).to(s.device)
            before = t.clone()
            try:
                result = s.backend.collective.all_reduce(t, op).result()
                found[f"{op}.{dtype}"] = (
                    "value",
                    t.to(torch.complex128 if dtype.is_complex else torch.float64).tolist(),
                    result is t,
                )
            except AccelError as error:
                untouched = torch.equal(t.view(torch.uint8).cpu(), before.view(torch.uint8).cpu())
                found[f"{op}.{dtype}"] = ("error", type(error).__name__, untouched)
            key = f"all_reduce.{op}.{str(dtype).removeprefix('torch.')}"
            assert (found[f"{op}.{dtype}"][0] == "value") is table[key].available, (
                key,
                table[key],
                found[f"{op}.{dtype}"],
            )
    return found


def test_every_cell_of_dtype_and_op_is_right_or_refused_before_sending(
    ranks: RankPool, backend_name: str
) -> None:  # T05, T06, T46
    first, second = ranks.run(_reduce_table, backend_name)
    assert first == second
    expected = {"sum": [3, 4, 3], "mean": [1.5, 2, 1.5], "min": [1, 2, 0], "max": [2, 2, 3], "product": [2, 4, 0]}
    for dtype, op in itertools.product(DTYPES, REDUCE_OPS):
        kind, got, intact = first[f"{op}.{dtype}"]
        assert intact, f"{op} of {dtype}: result() is not the input, or a refused input changed"
        if kind == "value":
            want: Any = expected[op]
            if dtype is torch.bool:
                want = {"sum": [1, 1, 1], "product": [1, 1, 0], "min": [1, 1, 0], "max": [1, 1, 1]}[op]
            assert got == want, f"{op} of {dtype}"
        else:
            assert got in ("TensorError", "UnsupportedError"), f"{op} of {dtype}"
    for integer in (torch.int64, torch.int8, torch.bool):
        assert first[f"mean.{integer}"][0] == "error"


def _fp16_mean(name: str) -> list[float]:
    with init(name) as s:
        t = torch.tensor([60000.0, 6e-8], dtype=torch.float16, device=s.device)
        s.backend.collective.all_reduce(t, "mean")
        return [float(v) for v in t]


def test_mean_of_fp16_neither_overflows_nor_vanishes(ranks: RankPool, backend_name: str) -> None:  # T05
    tiny = float(torch.tensor(6e-8, dtype=torch.float16))
    assert ranks.run(_fp16_mean, backend_name) == [[60000.0, tiny]] * 2


def _strided(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with init(name) as s:
        c = s.backend.collective

        def column() -> tuple[torch.Tensor, torch.Tensor]:
            whole = torch.tensor([[s.rank + 1.0, -1.0], [s.rank + 1.5, -1.0]], device=s.device)
            return whole, whole[:, 0]

        for op in ("all_reduce", "broadcast"):
            whole, view = column()
            result = getattr(c, op)(view).result()
            found[op] = (view.tolist(), whole[:, 1].tolist(), result is view)
        whole, view = column()
        c.all_reduce_coalesced([view, torch.ones(2, device=s.device).t()])
        found["coalesced"] = (view.tolist(), whole[:, 1].tolist(), True)
        found["all_gather"] = c.all_gather(column()[1]).result().tolist()
        found["reduce_scatter"] = c.reduce_scatter(column()[1]).result().tolist()
        found["all_to_all"] = c.all_to_all(column()[1]).result().tolist()
        matrix = torch.arange(6.0, device=s.device).reshape(2, 3).t()
        c.all_reduce(matrix)
        found["transposed"] = matrix.tolist()
        image = torch.ones(1, 2, 2, 2, device=s.device).contiguous(memory_format=torch.channels_last)
        c.all_reduce(image)
        found["channels_last"] = (image.unique().tolist(), image.is_contiguous(memory_format=torch.channels_last))
        empty, scalar = torch.zeros(0, device=s.device), torch.tensor(s.rank + 1.0, device=s.device)
        c.all_reduce(empty)
        c.all_reduce(scalar, "mean")
        found["odd"] = (empty.shape[0], scalar.item())
        refused = []
        for bad in (torch.ones(1, device=s.device).expand(3), nn.Parameter(torch.ones(2, device=s.device)), [1.0]):
            try:
                c.all_reduce(bad)
            except AccelError as error:
                refused.append(str(error))
        found["refused"] = refused
    return found


def test_strided_views_hold_the_result_themselves(ranks: RankPool, backend_name: str) -> None:  # T01, T23
    found = ranks.run(_strided, backend_name)
    for rank, got in enumerate(found):
        assert got["all_reduce"] == ([3.0, 4.0], [-1.0, -1.0], True)
        assert got["coalesced"] == ([3.0, 4.0], [-1.0, -1.0], True)
        assert got["broadcast"] == ([1.0, 1.5], [-1.0, -1.0], True)
        assert got["all_gather"] == [[1.0, 1.5], [2.0, 2.5]]
        assert got["reduce_scatter"] == [[3.0], [4.0]][rank]
        assert got["all_to_all"] == [[1.0, 2.0], [1.5, 2.5]][rank]
        assert got["transposed"] == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]
        assert got["channels_last"] == ([2.0], True)
        assert got["odd"] == (0, 1.5)
        assert len(got["refused"]) == 3


def _nan(name: str) -> list[Any]:
    out = []
    with init(name) as s:
        for owner, op, dtype in itertools.product(
            (0, 1), ("min", "max"), (torch.float32, torch.float16, torch.bfloat16, torch.float64)
        ):
            if not s.backend.capabilities()[f"all_reduce.{op}.{str(dtype).removeprefix('torch.')}"].available:
                continue
            t = torch.tensor(
                [math.nan if s.rank == owner else 1.0, -2.0 + s.rank, math.inf, -0.5], dtype=dtype, device=s.device
            )
            s.backend.collective.all_reduce(t, op)
            out.append([str(v) for v in t.tolist()])
    return out


def test_nan_reaches_every_rank_through_min_and_max(ranks: RankPool, backend_name: str) -> None:
    first, second = ranks.run(_nan, backend_name)
    assert first == second
    assert first
    for row in first:
        assert row[0] == "nan"
        assert row[1] in ("-2.0", "-1.0")
        assert row[2:] == ["inf", "-0.5"]


def _objects(name: str) -> Any:
    with init(name) as s:
        c = s.backend.collective
        size = 5_000_000 if s.rank == 0 else 5
        gathered = c.all_gather_object({"rank": s.rank, "blob": "x" * size, "t": torch.tensor([s.rank + 1.0])})
        told = c.broadcast_object({"from": s.rank} if s.rank == 1 else None, src=1)
        return (
            [g["rank"] for g in gathered],
            [len(g["blob"]) for g in gathered],
            [g["t"].device.type for g in gathered],
            told,
        )


def test_objects_of_different_sizes_are_exchanged(ranks: RankPool, backend_name: str) -> None:  # T36, T35
    for got in ranks.run(_objects, backend_name):
        assert got == ([0, 1], [5_000_000, 5], ["cpu", "cpu"], {"from": 1})


# -- gradients ---------------------------------------------------------------------------------------------------------


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
    with init(name, accumulate=2, timeout=3.0) as s:
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
            return f"{type(error).__name__}: {error}"
    return "nothing"


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


# -- data --------------------------------------------------------------------------------------------------------------


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
            lambda opt, a, k: gradients.append(float(opt.param_groups[0]["params"][0].grad))
        )
        loader: Any = [torch.full((1,), 5.0)] * counts[s.rank] if sized else Stream(counts[s.rank])
        for x in s.batches(loader):
            s.backward(model(x.reshape(1, 1)).sum())
            s.step(optimizer)
        metric = torch.ones(1, device=s.device)
        s.backend.collective.all_reduce(metric, "mean")
        return gradients, float(metric), s.dropped_batches


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


# -- checkpoints -------------------------------------------------------------------------------------------------------


def _save(name: str, path: str, who: str) -> Any:
    with init(name, timeout=20.0) as s:
        model = mlp()
        called, optimizer = s.prepare(model, sgd(model, momentum=0.9))
        dataset = TensorDataset(*data(16))
        loader = DataLoader(dataset, batch_size=2, sampler=s.sampler(dataset))
        seen = []
        for i, (x, y) in enumerate(s.batches(loader, epoch=0)):
            seen.append(float(x.sum()))
            s.backward(loss_of(called, x, y))
            s.step(optimizer)
            if i == 1:
                break
        if who == "all" or s.rank == int(who):
            s.save(path, model=called, optimizer=optimizer)
        s.barrier()
        return seen, torch.rand(1).item()


def _load(name: str, path: str) -> Any:
    with init(name, timeout=20.0, seed=99) as s:
        model = mlp(7)
        called, optimizer = s.prepare(model, sgd(model, momentum=0.9))
        s.load(path, model=called, optimizer=optimizer)
        after = torch.rand(1).item()
        dataset = TensorDataset(*data(16))
        s._seed = 0  # the sampler's order is the saved run's
        loader = DataLoader(dataset, batch_size=2, sampler=s.sampler(dataset))
        return (
            [float(x.sum()) for x, _ in s.batches(loader, epoch=0)],
            after,
            [v.tolist() for v in values(s.unwrap(called))],
        )


def test_checkpoint_of_all_ranks_resumes_each_rank_where_it_was(
    ranks: RankPool, backend_name: str, tmp_path: Path
) -> None:  # T52
    saved = ranks.run(_save, backend_name, str(tmp_path / "c"), "all")
    loaded = ranks.run(_load, backend_name, str(tmp_path / "c"))
    inputs = sorted(float(x.sum()) for x in data(16)[0].split(1))
    assert len(inputs) == 16
    for (seen, number), (rest, after, _) in zip(saved, loaded, strict=True):
        assert number == after
        assert len(seen) == len(rest) == 2
        assert not set(seen) & set(rest)
    assert loaded[0][2] == loaded[1][2]


@pytest.mark.parametrize("who", ["0", "1"])
def test_save_on_one_rank_only_returns(ranks: RankPool, backend_name: str, tmp_path: Path, who: str) -> None:  # T58
    ranks.run(_save, backend_name, str(tmp_path / "c"), who, timeout=30.0)
    assert (tmp_path / "c").exists() is (who == "0")


def _resumed(name: str, path: str) -> int:
    with init(name, timeout=20.0) as s:
        called = s.prepare(mlp())
        s.load(path, model=called)
        dataset = TensorDataset(*data(16))
        return len(list(s.batches(DataLoader(dataset, batch_size=2, sampler=s.sampler(dataset)), epoch=0)))


def test_checkpoint_without_a_ranks_part_starts_the_epoch_anew_on_every_rank(
    ranks: RankPool, backend_name: str, tmp_path: Path
) -> None:
    ranks.run(_save, backend_name, str(tmp_path / "c"), "0")
    assert ranks.run(_resumed, backend_name, str(tmp_path / "c")) == [4, 4]


def test_checkpoint_of_two_ranks_loads_in_one_with_a_word_on_what_is_lost(
    ranks: RankPool, backend_name: str, start: Any, tmp_path: Path, caplog: Any
) -> None:  # T52
    ranks.run(_save, backend_name, str(tmp_path / "c"), "all")
    session = start()
    model = mlp(7)
    called, optimizer = session.prepare(model, sgd(model, momentum=0.9))
    session.load(tmp_path / "c", model=called, optimizer=optimizer)
    assert "saved with 2 rank(s), loaded with 1" in caplog.text
    session.save(tmp_path / "one", model=called, optimizer=optimizer)
    again = ranks.run(_load, backend_name, str(tmp_path / "one"))
    assert again[0][2] == [v.tolist() for v in values(session.unwrap(called))] == again[1][2]


# -- when something goes wrong -----------------------------------------------------------------------------------------


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
