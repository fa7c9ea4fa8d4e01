"""Contract of collectives between two ranks: layouts, NaN, overflow, objects; `test_ranks_cells` has the dtypes.

Each test runs one top-level function in two warm ranks; what it returns comes back by rank.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import nn

from accel.errors import AccelError
from accel.testing.ranks import RankPool
from accel.testing.training import init


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
        image = torch.ones(1, 2, 2, 2, device=s.device).permute(0, 3, 1, 2)  # channels_last, which NPUs refuse to make
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
        shown = 0 in torch.ones(1, device=s.device).expand(3).stride()  # a lazy device has no memory to share
        found["refused"] = refused, 3 if shown else 2
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
        assert len(got["refused"][0]) == got["refused"][1]


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
