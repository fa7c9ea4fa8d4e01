"""What several ranks on NPUs do: HCCL's limits, a peer that dies, a group of the user's, equality with one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import accel
from accel import _env
from accel.errors import BackendError, CollectiveError
from accel.testing.models import assert_close
from accel.testing.ranks import RankPool, outcomes, run_ranks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with pytest.MonkeyPatch.context() as patch:
        for name in _env.vendor_variables_written():  # by sessions of this process: the ranks would inherit them
            patch.delenv(name, raising=False)
        with RankPool(2) as ranks:
            yield ranks


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def _data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(count, 4, 1, 8, 8), torch.randint(0, 3, (count, 4))


def _train(precision: str, accumulate: int, overflow: bool = False) -> dict[str, Any]:
    """Three windows; this rank's half of each batch. `overflow`: rank 1's gradient becomes inf in the second window."""
    model = _model()
    xs, ys = _data(3 * accumulate)
    with accel.init(backend="npu", precision=precision, accumulate=accumulate, timeout=60) as s:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer = s.prepare(model, optimizer)
        share = slice(2 * s.rank, 2 * s.rank + 2) if s.world_size > 1 else slice(None)
        results = []
        for step, (x, y) in enumerate(s.batches([(x[share], y[share]) for x, y in zip(xs, ys, strict=True)])):
            with s.autocast():
                loss = nn.functional.cross_entropy(model(x), y)
            if overflow and s.rank == 1 and step // accumulate == 1:
                loss = loss * float("inf")
            s.backward(loss)
            result = s.step(optimizer)
            if result.boundary:
                results.append((bool(result.skipped), None if result.loss_scale is None else float(result.loss_scale)))
        values = [p.detach().cpu() for p in s.unwrap(model).parameters()]
    return {"results": results, "values": values, "written": _env.vendor_variables_written()}


def test_two_ranks_equal_the_full_batch(pool: RankPool) -> None:
    both = pool.run(_train, "fp32", 1)
    alone = _train("fp32", 1)
    for got in both:
        assert_close(got["values"], alone["values"], 1e-6)
    assert both[0]["written"]["HCCL_EXEC_TIMEOUT"] == "60"  # T38
    assert both[0]["written"]["HCCL_CONNECT_TIMEOUT"] == "120"


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_overflow_in_one_rank_is_skipped_by_all(pool: RankPool, precision: str, accumulate: int) -> None:
    overflow = precision == "fp16"  # the others have no scaler: an overflow would reach the weights, as it should
    first, second = pool.run(_train, precision, accumulate, overflow)
    assert first["results"] == second["results"]
    assert [skipped for skipped, _ in first["results"]] == [False, overflow, False]
    for a, b in zip(first["values"], second["values"], strict=True):
        assert torch.equal(a, b)
        assert a.isfinite().all()
    if overflow:
        scales = [scale for _, scale in first["results"]]  # each window's own
        assert scales == [scales[0], scales[0], scales[0] / 2]


def _sum_of_ranks() -> list[Any]:
    with accel.init(backend="npu", timeout=60) as s:
        c = s.backend.collective
        mine = s.rank + 1.0
        out: list[Any] = [
            c.all_reduce(torch.full((3,), mine, device=s.device), op).result()[0].item()
            for op in ("sum", "mean", "max", "product")
        ]
        out.append(c.all_gather(torch.tensor([s.rank], device=s.device)).result().flatten().tolist())
        out.append(c.all_to_all(torch.arange(s.world_size, device=s.device)).result().tolist())
        pair = c.new_group([0, s.world_size - 1])
        if s.rank in (0, s.world_size - 1):
            out.append(c.all_reduce(torch.ones(1, device=s.device), group=pair).result().item())
        c.barrier()
        out.append(c.all_gather_object({"device": str(s.device)}))
        return out


def test_four_ranks_agree() -> None:
    everybody = run_ranks(_sum_of_ranks, 4, timeout=200, env={"ACCEL_EMULATE_NPU_DEVICES": "4"})
    for rank, (total, mean, largest, product, rows, column, *rest) in enumerate(everybody):
        assert (total, mean, largest, product) == (10.0, 2.5, 4.0, 24.0)
        assert rows == [0, 1, 2, 3]
        assert column == [rank] * 4
        assert rest[-1] == [{"device": f"npu:{i}"} for i in range(4)]  # T35: nothing lands on device 0 by default
    assert everybody[0][6] == everybody[3][6] == 2.0


def _second_group() -> list[float]:
    import torch_npu  # noqa: F401 - the user's own start, before accel

    rank = int(os.environ["RANK"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl")
    mine = dist.new_group([0, 1])
    t = torch.ones(2, device="npu") * (rank + 1)
    dist.all_reduce(t, group=mine)
    with accel.init(backend="npu", timeout=60) as s:  # uses the group that it finds, and leaves it to its owner
        u = s.backend.collective.all_reduce(torch.full((2,), rank + 1.0, device=s.device)).result()
    dist.all_reduce(t)
    found = [t[0].item(), u[0].item()]
    dist.destroy_process_group()
    return found


def _gloo_group() -> str:
    dist.init_process_group("gloo")
    try:
        accel.init(backend="npu", timeout=60)
    except BackendError as error:
        return str(error)
    finally:
        dist.destroy_process_group()
    return "accepted"


def test_a_process_group_of_the_user_is_used_or_named(pool: RankPool) -> None:
    assert pool.run(_second_group) == [[6.0, 3.0], [6.0, 3.0]]
    for said in pool.run(_gloo_group):
        assert "already initialised with backend" in said
        assert "hccl" in said


def _killed_peer() -> None:
    with accel.init(backend="npu", timeout=8, check="off") as s:
        t = torch.ones(3, device=s.device)
        s.backend.collective.all_reduce(t).wait(host=True)
        if s.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        s.backend.collective.all_reduce(t)
        t.sum().item()  # the host reads: here at the latest the fabric's error comes up


def test_peers_of_a_killed_rank_end_with_an_error_that_names_it(pool: RankPool) -> None:  # T39
    survivor, killed = pool.outcomes(_killed_peer)
    assert killed.value == -signal.SIGKILL
    assert survivor.kind == "error", survivor
    assert issubclass(getattr(accel.errors, survivor.value, Exception), CollectiveError), survivor.text
    assert "HCCL error" in survivor.text
    assert "no sign of rank 1" in survivor.text


def _alone_on_its_device() -> int:
    with accel.init(backend="npu", timeout=60) as s:
        s.barrier()
        return s.device.index


def test_one_visible_device_a_process_is_index_0() -> None:  # T31, T35
    assert outcomes(_alone_on_its_device, 1, timeout=100, env={"ASCEND_RT_VISIBLE_DEVICES": "1"})[0].value == 0
