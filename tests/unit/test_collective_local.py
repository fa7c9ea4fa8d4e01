"""Collectives at world size 1: the same contract and refusals as between ranks; every device named, none guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from accel.collective import Collective
from accel.control import ControlPlane
from accel.errors import ArgumentError, TensorError, UnsupportedError
from accel.transport import REDUCE_OPS, Handle, Transport
from accel_cpu.device import CpuDevice
from accel_cpu.transport import CpuTransport


@pytest.fixture
def alone() -> Collective:
    return Collective.local(CpuTransport(), CpuDevice())


@pytest.mark.parametrize("op", REDUCE_OPS)
@pytest.mark.parametrize("async_op", [False, True])
def test_all_reduce_returns_its_input(alone: Collective, op: str, async_op: bool) -> None:  # T23
    t = torch.tensor([1.0, float("nan")])
    work = alone.all_reduce(t, op, async_op=async_op)
    assert work.done()
    work.wait(timeout=1, host=True)
    assert work.result() is t
    assert t[0].item() == 1.0


def test_shapes_are_those_of_a_group_of_one(alone: Collective) -> None:
    t = torch.arange(4.0).reshape(2, 2)
    assert alone.all_gather(t).result().shape == (1, 2, 2)
    assert alone.reduce_scatter(t, "mean").result().equal(t)
    assert alone.all_to_all(t).result().equal(t)
    assert alone.broadcast(t).result() is t
    assert alone.all_reduce_coalesced([t, t]).result() == [t, t]
    assert alone.gather_ragged(t).equal(t)
    assert alone.all_gather(torch.tensor(1.0)).result().shape == (1,)
    group = alone.new_group([0])
    assert alone.all_reduce(t, group=group).result() is t
    alone.barrier(timeout=1)
    assert alone.all_gather_object((1, "a")) == [(1, "a")]


def test_results_do_not_share_memory_with_the_input(alone: Collective) -> None:
    t = torch.ones(2)
    works = [alone.all_gather(t, async_op=True), alone.reduce_scatter(t), alone.all_to_all(t)]
    t.zero_()
    assert all(work.result().sum() == 2.0 for work in works)


def test_what_fails_between_ranks_fails_alone(alone: Collective) -> None:
    with pytest.raises(TensorError, match="mean"):
        alone.all_reduce(torch.ones(1, dtype=torch.int64), "mean")  # T06
    with pytest.raises(TensorError, match="share memory"):
        alone.all_reduce(torch.ones(1).expand(3))
    with pytest.raises(TensorError, match="requires grad"):
        alone.broadcast(torch.ones(1, requires_grad=True))
    with pytest.raises(TensorError, match="float8"):
        alone.all_reduce(torch.ones(2).to(torch.float8_e5m2))
    with pytest.raises(ArgumentError, match="'average'"):
        alone.all_reduce(torch.ones(1), "average")
    with pytest.raises(ArgumentError, match="src is 1"):
        alone.broadcast(torch.ones(1), src=1)
    with pytest.raises(ArgumentError, match="itself"):
        alone.send(torch.ones(1), dst=0)


def test_destroy_and_abort_are_harmless(alone: Collective) -> None:
    alone.abort()
    alone.destroy()
    alone.destroy()
    alone.all_reduce(torch.ones(1))


class _Done(Handle):
    def wait(self, timeout: float | None = None) -> bool:
        return True

    def done(self) -> bool:
        return True


class _Recorder(Transport):
    """A fabric that notes the device of everything it is given."""

    name = "recorder"
    native_dtypes = frozenset({torch.uint8, torch.float32})
    native_reductions = dict.fromkeys(REDUCE_OPS, frozenset({torch.float32}))

    def __init__(self) -> None:
        self.devices: list[torch.device] = []

    def _note(self, *tensors: torch.Tensor) -> Handle:
        self.devices += [tensor.device for tensor in tensors]
        return _Done()

    def init(self, store: Any, rank: int, world_size: int, timeout: float, device: torch.device) -> None:
        self.devices.append(device)

    def all_reduce(self, tensors: Sequence[torch.Tensor], op: str, group: Any) -> Handle:
        return self._note(*tensors)

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        return self._note(out, tensor)

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str, group: Any) -> Handle:
        return self._note(out, tensor)

    def broadcast(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        return self._note(tensor)

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        return self._note(out, tensor)

    def send(self, tensor: torch.Tensor, dst: int, group: Any) -> Handle:
        return self._note(tensor)

    def recv(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        return self._note(tensor)

    def new_group(self, ranks: Sequence[int], timeout: float) -> Any:
        return tuple(ranks)

    def abort(self) -> None: ...

    def destroy(self) -> None: ...


class _OtherDevice(CpuDevice):
    """A device that is not where torch puts tensors by default."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("meta")

    def __init__(self) -> None:
        super().__init__()
        self.type = "meta"


class _Peers(ControlPlane):
    """Rank 1 of 2 as the collective sees it; the other rank is not there and nothing asks for it."""

    def __init__(self) -> None:
        super().__init__(None, 0, 1)
        self.rank, self.world_size = 1, 2

    @property
    def store(self) -> Any:
        return None


def test_every_tensor_lands_on_the_device_of_the_rank() -> None:  # T35
    fabric = _Recorder()
    c = Collective.connect(fabric, _OtherDevice(), _Peers(), local_rank=1, timeout=5.0, check="off")
    t = torch.ones(2, 2, device=torch.device("meta"))
    for call in (c.all_reduce, c.all_gather, c.reduce_scatter, c.broadcast, c.all_to_all):
        call(t)
    c.all_reduce_coalesced([t, t.half()], "mean")
    c.broadcast_coalesced([t, t.half()])
    c.send(t, dst=0)
    c.recv(t, src=0)
    assert fabric.devices
    assert set(fabric.devices) == {torch.device("meta")}
    with pytest.raises(TensorError, match="takes a tensor on meta; got one on cpu"):
        c.all_reduce(torch.ones(2))
    with pytest.raises(UnsupportedError, match="float64"):
        c.all_reduce(t.double())
