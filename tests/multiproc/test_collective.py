"""Collectives between two and three gloo ranks: values, dtypes, views, groups and asynchronous use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from accel._lowering import DTYPES
from accel.errors import ArgumentError, CollectiveError, TensorError
from accel.testing.ranks import RankPool
from tests.multiproc.jobs import collective

NAN = float("nan")


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def _strided() -> None:
    with collective() as c:
        matrix = torch.tensor([[c.rank + 1, -1.0], [c.rank + 1.5, -1.0]])
        column = matrix[:, 0]
        assert c.all_reduce(column).result() is column
        assert matrix.tolist() == [[3.0, -1.0], [4.0, -1.0]]
        c.broadcast(matrix[:, 0].mul_(c.rank + 1), src=1)
        matrix = torch.tensor([[c.rank + 1, -1.0], [c.rank + 1.5, -1.0]])
        c.broadcast(matrix[:, 0], src=1)
        assert matrix.tolist() == [[2.0, -1.0], [2.5, -1.0]]
        mine = torch.tensor([[c.rank + 1, -1.0], [c.rank + 1.5, -1.0]])[:, 0]
        assert c.all_gather(mine).result().tolist() == [[1.0, 1.5], [2.0, 2.5]]
        assert c.reduce_scatter(mine).result().tolist() == [[3.0], [4.0]][c.rank]
        assert c.all_to_all(mine).result().tolist() == [[1.0, 2.0], [1.5, 2.5]][c.rank]
        c.all_reduce_coalesced([matrix[:, 0], matrix[:, 1]], "max")
        assert matrix.tolist() == [[2.0, -1.0], [2.5, -1.0]]


def test_strided_views_hold_the_result_and_their_neighbours_are_untouched(pool: RankPool) -> None:  # T01
    pool.run(_strided)


def _layouts() -> None:
    with collective() as c:
        # Same shape, different layout on each rank: elements pair up by index, not by memory.
        base = torch.arange(6.0).reshape(2, 3)
        mine = base.clone() if c.rank == 0 else base.t().contiguous().t()
        c.all_reduce(mine)
        assert mine.equal(base * 2)
        assert mine.is_contiguous() == (c.rank == 0)
        image = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
        c.all_reduce(image, "mean")
        assert image.is_contiguous(memory_format=torch.channels_last)
        assert image.equal(torch.arange(24.0).reshape(1, 2, 3, 4))
        scalar = torch.tensor(c.rank + 1.0)
        assert c.all_reduce(scalar, "mean").result() is scalar
        assert scalar.item() == 1.5  # T06
        assert c.all_gather(scalar).result().tolist() == [1.5, 1.5]
        nothing = torch.empty(0, 3)
        assert c.all_reduce(nothing).result() is nothing
        assert c.all_gather(nothing).result().shape == (2, 0, 3)
        assert c.reduce_scatter(nothing).result().shape == (0, 3)
        assert c.all_to_all(nothing).result().shape == (0, 3)
        c.broadcast(nothing)


def test_any_layout_and_size_gives_the_right_values(pool: RankPool) -> None:  # T01
    pool.run(_layouts)


def _dtypes() -> None:
    with collective() as c:
        for dtype in DTYPES:
            pair = [torch.tensor([1, 0, 3]).to(dtype), torch.tensor([2, 0, 1]).to(dtype)]
            mine = pair[c.rank]
            assert _same(c.all_gather(mine).result(), torch.stack([t.view(torch.uint8) for t in pair]).view(dtype))
            other = torch.zeros(3).to(dtype)
            c.broadcast(other.copy_(mine), src=1)
            assert _same(other, pair[1])
            swapped = c.all_to_all(mine[:2].clone()).result()
            assert _same(
                swapped, torch.stack([t[c.rank].view(1).view(torch.uint8) for t in pair]).view(dtype).flatten()
            )
            if c.rank == 0:
                c.send(mine, dst=1)
            else:
                got = torch.zeros(3).to(dtype)
                assert c.recv(got, src=0).result() is got
                assert _same(got, pair[0])


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return (
        left.dtype is right.dtype
        and left.shape == right.shape
        and left.view(torch.uint8).equal(right.view(torch.uint8))
    )


def test_every_dtype_moves_unchanged(pool: RankPool) -> None:  # T46
    pool.run(_dtypes)


def _reductions() -> None:
    with collective() as c:

        def reduced(values: list[list[object]], dtype: torch.dtype, op: str) -> list[object]:
            mine = torch.tensor(values[c.rank], dtype=dtype)
            assert c.all_reduce(mine, op).result() is mine
            doubled = torch.tensor(values[c.rank] * 2, dtype=dtype)
            assert c.reduce_scatter(doubled, op).result().view(torch.uint8).equal(mine.view(torch.uint8))
            return mine.tolist()

        assert reduced([[60000.0], [60000.0]], torch.float16, "mean") == [60000.0]  # T05
        assert reduced([[6e-8], [6e-8]], torch.float16, "mean")[0] > 0  # T05
        assert reduced([[1.0] * 7, [2.0] * 7], torch.float32, "mean") == [1.5] * 7  # T06: by ranks, not by elements
        assert reduced([[1.0], [2.0]], torch.bfloat16, "mean") == [1.5]  # T06
        assert reduced([[100, 1], [100, 2]], torch.int8, "sum") == [-56, 3]  # T46: wraps as torch does
        assert reduced([[200, 1], [200, 2]], torch.uint8, "sum") == [144, 3]
        assert reduced([[30000], [30000]], torch.int16, "sum") == [-5536]
        assert reduced([[True, False], [True, False]], torch.bool, "sum") == [True, False]
        assert reduced([[1 + 1j], [2 - 3j]], torch.complex64, "sum") == [3 - 2j]
        assert reduced([[2**63 + 5], [7]], torch.uint64, "max") == [2**63 + 5]
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            for op in ("min", "max"):
                got = torch.tensor(reduced([[NAN, 1.0, -2.0], [1.0, NAN, 4.0]], dtype, op))
                assert got[:2].isnan().all()
                assert got[2] == (-2.0 if op == "min" else 4.0)


def test_reductions_agree_with_the_rules(pool: RankPool) -> None:
    pool.run(_reductions)


def _refusals() -> None:
    with collective() as c:
        for dtype in (torch.int64, torch.bool, torch.uint8):
            whole = torch.tensor([1, 0]).to(dtype)
            before = whole.clone()
            for call in (c.all_reduce, c.reduce_scatter):
                with pytest.raises(TensorError, match="mean"):
                    call(whole, "mean")  # T06
            assert whole.equal(before)
        with pytest.raises(TensorError, match="share memory"):
            c.all_reduce(torch.ones(1).expand(3))  # T01
        with pytest.raises(TensorError, match="requires grad"):
            c.all_reduce(torch.ones(2, requires_grad=True))
        with torch.no_grad():
            c.all_reduce(torch.ones(2, requires_grad=True))
        for bad, error, said in [
            (lambda: c.all_reduce([1.0]), TensorError, "list"),
            (lambda: c.all_reduce(torch.ones(2, device="meta")), TensorError, "meta"),
            (lambda: c.all_reduce(torch.eye(2).to_sparse()), TensorError, "sparse"),
            (lambda: c.all_reduce(torch.ones(2), "avg"), ArgumentError, "'avg'"),
            (lambda: c.all_reduce(torch.ones(2), timeout=0), ArgumentError, "timeout"),
            (lambda: c.broadcast(torch.ones(2), src=2), ArgumentError, "src is 2"),
            (lambda: c.broadcast(torch.ones(2), src=True), ArgumentError, "src is True"),
            (lambda: c.send(torch.ones(2), dst=c.rank), ArgumentError, "itself"),
            (lambda: c.recv(torch.ones(2), src=-1), ArgumentError, "src is -1"),
            (lambda: c.reduce_scatter(torch.ones(3)), TensorError, r"\[3\]"),
            (lambda: c.all_to_all(torch.tensor(1.0)), TensorError, r"\[\]"),
            (lambda: c.all_reduce(torch.ones(2), group="world"), ArgumentError, "new_group"),
            (lambda: c.new_group([]), ArgumentError, "at least one"),
            (lambda: c.new_group([0, 0]), ArgumentError, "once"),
            (lambda: c.new_group([0, 2]), ArgumentError, "from 0 to 1"),
        ]:
            with pytest.raises(error, match=said):
                bad()
        group = c.new_group([1])
        if c.rank == 0:
            with pytest.raises(ArgumentError, match="lacks this rank 0"):
                c.all_reduce(torch.ones(2), group=group)
        else:
            assert c.all_reduce(torch.ones(2), group=group).result().tolist() == [1.0, 1.0]
        ones = torch.ones(2)
        c.all_reduce(ones)
        assert ones.tolist() == [2.0, 2.0]
    with pytest.raises(CollectiveError, match="destroyed"):
        c.all_reduce(torch.ones(2))


def test_bad_arguments_are_refused_before_anything_is_sent(pool: RankPool) -> None:
    pool.run(_refusals)


def _async() -> None:
    with collective() as c:
        half = torch.full((3,), 60000.0, dtype=torch.float16)
        work = c.all_reduce(half, "mean", async_op=True)
        work.wait(host=True)
        assert work.done()
        assert work.result() is half
        assert half.tolist() == [60000.0] * 3
        # Nobody holds this one, and its post-processing is still done before the next operation reads the tensor.
        matrix = torch.tensor([[1.0, -1.0], [3.0, -1.0]])
        c.all_reduce(matrix[:, 0], "mean", async_op=True)
        c.all_reduce(matrix[:, 0], "sum")
        assert matrix.tolist() == [[2.0, -1.0], [6.0, -1.0]]
        c.all_reduce(matrix[:, 0], "sum", async_op=True)
        works = [c.all_gather(torch.tensor([float(i)]), async_op=True) for i in range(5)]
        assert [w.result().tolist() for w in reversed(works)] == [[[float(i)]] * 2 for i in reversed(range(5))]
    assert matrix.tolist() == [[4.0, -1.0], [12.0, -1.0]]  # completed by destroy at the latest


def test_asynchronous_results_are_not_lost(pool: RankPool) -> None:
    pool.run(_async)


def _coalesced() -> None:
    with collective() as c:
        many = [torch.ones(2), torch.ones((2, 2), dtype=torch.float64), torch.full((3,), 60000.0, dtype=torch.float16)]
        many += [torch.ones(4)[::2], torch.empty(0), torch.tensor(3.0)]
        assert c.all_reduce_coalesced(many, "mean").result() == many
        assert [t.sum().item() for t in many] == [2.0, 4.0, 180000.0, 2.0, 0.0, 3.0] or many[2].tolist() == [
            60000.0
        ] * 3
        flags = [torch.tensor([c.rank == 1]), torch.tensor([c.rank], dtype=torch.int16), torch.tensor([c.rank + 0.5])]
        c.broadcast_coalesced(flags, src=1)
        assert [t.item() for t in flags] == [True, 1, 1.5]
        c.all_reduce_coalesced([])
        rows = torch.arange(2.0 + c.rank)
        assert c.gather_ragged(rows).tolist() == [0.0, 1.0, 0.0, 1.0, 2.0]
        empty_here = torch.ones(0 if c.rank == 0 else 2, 2)
        assert c.gather_ragged(empty_here).shape == (2, 2)


def test_many_tensors_at_once(pool: RankPool) -> None:
    pool.run(_coalesced)


def _again() -> None:
    for turn in range(3):
        with collective() as c:
            t = torch.tensor([turn + 1.0])
            c.all_reduce(t)
            assert t.item() == 2 * (turn + 1)


def test_a_process_can_join_again_after_destroy(pool: RankPool) -> None:
    pool.run(_again)


def _groups() -> list[float]:
    with collective() as c:
        edge, rest = c.new_group([2, 0]), c.new_group([1])
        assert edge.ranks == (0, 2)
        assert rest.contains(1)
        mine = edge if edge.contains(c.rank) else rest
        t = torch.tensor([float(c.rank), 1.0])
        c.all_reduce(t, group=mine)
        got = torch.tensor([float(c.rank)])
        if c.rank != 1:
            c.broadcast(got, src=2, group=edge)
            assert c.all_gather(got, group=edge).result().shape == (2, 1)
        c.all_reduce(torch.ones(1))
        return [*t.tolist(), got.item()]


def test_groups_reduce_among_their_members() -> None:
    with RankPool(3) as three:
        assert three.run(_groups) == [[2.0, 2.0, 2.0], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]


def _overlapping() -> list[float]:
    with collective() as c:
        pairs = [c.new_group(pair) for pair in ([0, 1], [1, 2], [0, 2])]
        t = torch.tensor([1.0 + c.rank])
        for _ in range(2):
            for pair in pairs:
                if pair.contains(c.rank):
                    c.all_reduce(t, group=pair)
                else:
                    with pytest.raises(ArgumentError, match=f"lacks this rank {c.rank}"):
                        c.all_reduce(t, group=pair)
            c.all_reduce(torch.ones(1))
        return [float(v) for v in c.all_gather(t).result()]


def test_overlapping_groups_of_three_ranks_are_used_in_turn() -> None:
    values = [1.0, 2.0, 3.0]
    for pair in [(0, 1), (1, 2), (0, 2)] * 2:
        total = sum(values[rank] for rank in pair)
        values = [total if rank in pair else value for rank, value in enumerate(values)]
    with RankPool(3) as three:
        assert three.run(_overlapping) == [values] * 3


def _user_group(world: int) -> str:
    import os

    import torch.distributed as dist

    from accel.errors import BackendError

    dist.init_process_group("gloo")
    try:
        if world != 2:
            dist.destroy_process_group()
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]))
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            with pytest.raises(BackendError, match="already initialised"), collective():
                pass
            return "refused"
        with collective() as c:
            t = torch.ones(1)
            c.all_reduce(t)
        assert dist.is_initialized()
        dist.all_reduce(t)
        return str(t.item())
    finally:
        dist.destroy_process_group()


def test_a_process_group_of_the_user_is_used_and_left_alone(pool: RankPool) -> None:
    assert pool.run(_user_group, 2) == ["4.0", "4.0"]


def test_a_process_group_that_does_not_fit_is_refused(pool: RankPool) -> None:
    assert pool.run(_user_group, 1) == ["refused"] * 2
