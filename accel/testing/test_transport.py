"""Contract of `Transport` with one rank: the fabric itself runs, on the session's device, for all it declares."""

from __future__ import annotations

from typing import Any

import torch

from accel.testing.ranks import one_rank_store


def ones(backend: Any, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=backend.device.torch_device)


def test_each_native_reduction_of_one_rank_is_its_own_value(backend: Any, fabric: Any) -> None:
    tried = 0
    for op, dtypes in fabric.native_reductions.items():
        for dtype in dtypes:
            one, many = ones(backend, 3, dtype=dtype), [ones(backend, n, dtype=dtype) for n in (1, 4)]
            assert fabric.all_reduce([one], op, None).wait()
            assert fabric.all_reduce(many, op, None).wait()
            out = torch.zeros_like(one)
            assert fabric.reduce_scatter(out, one.unsqueeze(0).clone(), op, None).wait()
            backend.device.synchronize()
            for got in (one, *many, out):
                assert got.tolist() == [1] * got.numel(), (op, dtype)
            tried += 1
    assert tried > 4


def test_each_native_dtype_moves_through_every_operation(backend: Any, fabric: Any) -> None:
    for dtype in fabric.native_dtypes:
        t = ones(backend, 2, 2, dtype=dtype)
        assert fabric.broadcast(t, 0, None).wait()
        gathered, dealt = torch.zeros_like(t).unsqueeze(0), torch.zeros_like(t).unsqueeze(0)
        assert fabric.all_gather(gathered, t, None).wait()
        assert fabric.all_to_all(dealt, t.unsqueeze(0).clone(), None).wait()
        backend.device.synchronize()
        for got in (t, gathered[0], dealt[0]):
            assert got.tolist() == [[1, 1], [1, 1]], dtype


def test_a_group_of_one_rank_is_a_fabric_of_its_own(backend: Any, fabric: Any) -> None:
    group = fabric.new_group([0], 30.0)
    t = ones(backend, 3, dtype=torch.float32)
    handle = fabric.all_reduce([t], "sum", group)
    assert handle.wait()
    backend.device.synchronize()
    assert handle.done()
    assert t.tolist() == [1, 1, 1]


def test_a_fabric_that_was_left_can_be_joined_again(backend: Any, fabric: Any) -> None:
    fabric.destroy()
    fabric.init(one_rank_store(), 0, 1, 30.0, backend.device.torch_device)
    t = ones(backend, 3, dtype=torch.float32)
    assert fabric.all_reduce([t], "sum", None).wait()
    backend.device.synchronize()
    assert t.tolist() == [1, 1, 1]


def test_each_device_has_an_identity_of_its_own_or_none(backend: Any) -> None:
    names = [backend.device.identity(index) for index in range(backend.device.count())]
    assert all(name is None for name in names) or len(set(names)) == len(names)
