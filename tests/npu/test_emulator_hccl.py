"""Emulated HCCL under torch_npu's process group: results, sub-groups, refusals, silence and death."""

from __future__ import annotations

import os
import signal
import time
import warnings
from datetime import timedelta
from typing import Any

import pytest

from accel.testing.ranks import outcomes, run_ranks


def _join(timeout: float = 60.0) -> tuple[Any, Any, int, str]:
    import torch
    import torch.distributed as dist
    import torch_npu  # noqa: F401 - where torch does not load it by itself

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl", rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    return torch, dist, rank, f"npu:{rank}"


def _collectives() -> dict[str, Any]:
    torch, dist, rank, device = _join()
    size = dist.get_world_size()
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8):
        x = torch.full((1000,), rank + 1, dtype=dtype, device="cpu").to(device)
        dist.all_reduce(x)
        found[f"sum {dtype}"] = x.cpu().unique().tolist()
    for op in ("MAX", "MIN", "PRODUCT", "AVG"):
        x = torch.tensor([float(rank + 1)]).to(device)
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        found[op] = x.item()
    x = torch.full((300_000,), float(rank)).to(device)  # more than the slots of a mailbox hold
    dist.broadcast(x, size - 1)
    found["broadcast"] = x.cpu().unique().tolist()
    parts = [torch.empty(3, device=device) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank)).to(device))
    found["all_gather"] = [part.cpu()[0].item() for part in parts]
    ragged = [torch.empty(n + 1, device=device) for n in range(size)]
    dist.all_gather(ragged, torch.full((rank + 1,), float(rank)).to(device))
    found["all_gather_v"] = [part.cpu().tolist() for part in ragged]
    y = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(y, torch.arange(2.0 * size).to(device))
    found["reduce_scatter"] = y.cpu().tolist()
    y = torch.empty(size, device=device)
    dist.all_to_all_single(y, (torch.arange(float(size)) + 10 * rank).to(device))
    found["all_to_all"] = y.cpu().tolist()
    y = torch.empty(size * (rank + 1), device=device)  # rank r gets r + 1 elements of each
    counts = list(range(1, size + 1))
    x = torch.full((sum(counts),), float(rank)).to(device)
    dist.all_to_all_single(y, x, [rank + 1] * size, counts)
    found["all_to_all_v"] = y.cpu().tolist()
    x = torch.tensor([float(rank + 1)]).to(device)
    dist.reduce(x, 0)
    found["reduce"] = x.item() if rank == 0 else None
    y = torch.empty(1, device=device)
    dist.scatter(y, [torch.tensor([float(n)]).to(device) for n in range(size)] if rank == 0 else None, src=0)
    found["scatter"] = y.item()
    peer = rank ^ 1
    y = torch.empty(4, device=device)
    if rank % 2 == 0:
        dist.send(torch.full((4,), float(rank)).to(device), peer)
        dist.recv(y, peer)
    else:
        dist.recv(y, peer)
        dist.send(torch.full((4,), float(rank)).to(device), peer)
    found["recv"] = y.cpu()[0].item()
    both = [
        dist.P2POp(dist.isend, torch.full((4,), float(rank + 10)).to(device), peer),
        dist.P2POp(dist.irecv, y, peer),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    found["batch"] = y.cpu()[0].item()
    pairs = [dist.new_group([n, n + 1]) for n in range(0, size, 2)]
    x = torch.tensor([float(rank)]).to(device)
    dist.all_reduce(x, group=pairs[rank // 2])
    found["group"] = x.item()
    dist.barrier(device_ids=[rank])
    torch.npu.synchronize()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("size", [2, 4])
def test_every_collective_gives_what_its_definition_says(size: int) -> None:
    total = size * (size + 1) // 2
    for rank, found in enumerate(run_ranks(_collectives, size, timeout=150, env=_devices(size))):
        assert all(value == [total] for name, value in found.items() if name.startswith("sum")), found
        product = 1
        for n in range(1, size + 1):
            product *= n
        assert (found["MAX"], found["MIN"], found["PRODUCT"], found["AVG"]) == (size, 1, product, total / size)
        assert found["broadcast"] == [size - 1]
        assert found["all_gather"] == list(range(size))
        assert found["all_gather_v"] == [[float(n)] * (n + 1) for n in range(size)]
        assert found["reduce_scatter"] == [size * 2.0 * rank, size * (2.0 * rank + 1)]
        assert found["all_to_all"] == [10.0 * n + rank for n in range(size)]
        assert found["all_to_all_v"] == [float(n) for n in range(size) for _ in range(rank + 1)]
        assert found["reduce"] == (total if rank == 0 else None)
        assert found["scatter"] == rank
        assert found["recv"] == rank ^ 1
        assert found["batch"] == (rank ^ 1) + 10
        assert found["group"] == 2 * (rank // 2 * 2) + 1


def _gathered() -> list[float]:
    torch, dist, rank, device = _join()
    parts = [torch.empty(1, device=device) for _ in range(2)] if rank == 0 else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HCCL has no gather, torch_npu says so and gathers on every rank
        dist.gather(torch.tensor([rank + 1.0]).to(device), parts, dst=0)
    found = [part.item() for part in parts or []]
    dist.destroy_process_group()
    return found


def test_gather_is_an_all_gather_of_torch_npu() -> None:
    assert run_ranks(_gathered, 2, timeout=60) == [[1.0, 2.0], []]


def _refused() -> list[str]:
    torch, dist, _, device = _join()
    messages = []
    for dtype, op in (
        (torch.float64, dist.ReduceOp.SUM),
        (torch.bfloat16, dist.ReduceOp.PRODUCT),
        (torch.int32, dist.ReduceOp.BAND),
    ):
        try:
            dist.all_reduce(torch.empty(4, dtype=dtype, device=device), op)
            torch.npu.synchronize()
            messages.append("accepted")
        except (RuntimeError, ValueError, TypeError) as error:
            messages.append(str(error))
    dist.destroy_process_group()
    return messages


def test_reductions_that_a_910b_has_not_are_refused() -> None:
    for messages in run_ranks(_refused, 2, timeout=100):
        assert "accepted" not in messages


def _silent() -> tuple[float, str]:
    """Rank 0 reduces alone; rank 1 is there and says nothing."""
    torch, dist, rank, device = _join()
    dist.all_reduce(torch.ones(1).to(device))  # both have a communicator
    torch.npu.synchronize()
    started = time.monotonic()
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(1).to(device))
            torch.npu.synchronize()
        except RuntimeError as error:
            return time.monotonic() - started, str(error)
    else:
        time.sleep(8)
    return time.monotonic() - started, ""


def test_a_rank_that_says_nothing_ends_the_others_wait_with_hccls_own_error() -> None:
    settings = {"HCCL_EXEC_TIMEOUT": "3", "TORCH_HCCL_ENABLE_MONITORING": "0", "HCCL_ASYNC_ERROR_HANDLING": "0"}
    ended = outcomes(_silent, 2, timeout=60, env=settings)
    assert ended[0].kind == "result", ended[0]
    assert "107020" in ended[0].value[1]
    assert "EI0002" in ended[0].value[1]
    assert "HCCL_EXEC_TIMEOUT" in ended[0].value[1]


def _killed() -> str:
    torch, dist, rank, device = _join()
    dist.all_reduce(torch.ones(1).to(device))
    torch.npu.synchronize()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        x = torch.ones(1).to(device)
        dist.all_reduce(x)
        (x + 1).item()  # read on another stream than the one that failed
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_rank_that_dies_is_noticed_and_named() -> None:
    settings = {"TORCH_HCCL_ENABLE_MONITORING": "0", "HCCL_ASYNC_ERROR_HANDLING": "0"}
    ended = outcomes(_killed, 2, timeout=60, env=settings)
    assert ended[1].value == -signal.SIGKILL
    assert ended[0].kind == "result", ended[0]
    assert "507057" in ended[0].value
    assert "lost rank 1, whose process has ended" in ended[0].value


def _alone() -> str:
    torch, dist, rank, device = _join()
    if rank == 1:
        time.sleep(8)
        return ""
    try:
        dist.all_reduce(torch.ones(1).to(device))
        torch.npu.synchronize()
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_rank_that_never_connects_ends_in_hccls_timeout() -> None:
    ended = outcomes(_alone, 2, timeout=150, env={"HCCL_CONNECT_TIMEOUT": "3", "HCCL_ASYNC_ERROR_HANDLING": "0"})
    assert ended[0].kind == "result", ended[0]
    assert "error code is 9" in ended[0].value
    assert "EI0006" in ended[0].value


def _devices(count: int) -> dict[str, str]:
    return {"ACCEL_EMULATE_NPU_DEVICES": str(count)}
