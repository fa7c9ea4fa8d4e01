"""Transport of the XLA backend: XLA's own collectives, recorded into the graph, between PJRT's replicas.

Rank, world size and local rank are PJRT's. Within a step a collective is a node of the step's graph. One that the user
calls runs in a graph of its own, since programs with a collective must be alike on all replicas and whatever else is
pending need not be. Reductions leave layouts unpinned (`pin_layout=False`): pinned, torch_xla 2.9 builds programs that
differ by rank, which hang.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch.distributed.distributed_c10d import Store
from torch_xla._internal import pjrt

from accel import _store
from accel.device import Device
from accel.errors import LaunchError, UnsupportedError
from accel.rendezvous import Rendezvous
from accel.transport import Handle, Transport
from accel_xla import _replicas
from accel_xla._replicas import Meeting

ALONE = (
    "an XLA program with a collective runs on all replicas, and one that only some of them run never ends (torch_xla "
    "2.9 on PJRT's CPU client)"
)
PORT = 12356  # of the store between processes; torch_xla's own rendezvous takes 12355
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_MOVED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_SUMMED = frozenset({torch.float32, torch.float64})  # PJRT's CPU client lacks bf16 (torch_xla 2.9)
_XLA_OPS = {"sum": xm.REDUCE_SUM, "product": xm.REDUCE_MUL, "min": xm.REDUCE_MIN, "max": xm.REDUCE_MAX}


class Recorded(Handle):
    """An operation that is part of a graph: ordered before whatever is recorded later."""

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def done(self) -> bool:
        return True


class XlaTransport(Transport):
    """Collectives between PJRT's replicas: threads of this process, processes, or both."""

    name = "xla"
    fuses = True
    native_dtypes = _INTEGERS | _MOVED | {torch.bool}
    native_reductions: Mapping[str, frozenset[torch.dtype]] = {
        "sum": _INTEGERS | _SUMMED,
        "product": _INTEGERS | _SUMMED,
        "min": _INTEGERS | _SUMMED,
        "max": _INTEGERS | _SUMMED,
        "mean": frozenset(),  # torch_xla's AVG raises (2.9)
    }

    def __init__(self, device: Device) -> None:
        self._flush = device.flush
        self._rank, self._world_size, self._timeout = 0, 1, 600.0
        self._device = torch.device("cpu")
        self._connection = ""
        self._meeting: Meeting | None = None  # None where no other replica is in this process
        self._in_graph = False
        self._pending = False  # whether a collective is recorded that no cut has run

    def place(self, launched: Rendezvous) -> Rendezvous:
        if launched.world_size > 1 and xr.device_type() == "TPU":  # torchrun on a TPU host: one process a chip
            pjrt.initialize_multiprocess(launched.local_rank, launched.local_world_size)
        world_size = int(xr.world_size())
        if launched.launched and launched.world_size != world_size:
            raise LaunchError(
                f"the launcher says WORLD_SIZE={launched.world_size}, but torch_xla sees a world of {world_size}: its "
                "replicas would train apart without a word. Start them with `accel launch --nproc N script.py`, or "
                "without RANK and WORLD_SIZE through torch_xla.launch"
            )
        if world_size == 1:
            return launched
        return Rendezvous(
            rank=int(xr.global_ordinal()),
            world_size=world_size,
            local_rank=int(xr.local_ordinal()),
            local_world_size=int(xr.local_device_count()),
            launched=True,
            device=int(torch_xla.device().index),
        )

    def connect(self, place: Rendezvous, timeout: float) -> Store:
        if xr.addressable_device_count() == place.world_size:
            store, self._connection = _replicas.store(place.rank, timeout)
            return store
        address = os.environ.get("MASTER_ADDR") or xr.get_master_ip()
        port = os.environ.get("MASTER_PORT") or str(PORT)
        agent = {name: value for name, value in os.environ.items() if name.startswith("TORCHELASTIC_")}
        store = _store.connect(place, timeout, {**agent, "MASTER_ADDR": address, "MASTER_PORT": port})
        self._connection = f"{address}:{port}"
        return store

    def init(self, store: Any, rank: int, world_size: int, timeout: float, device: torch.device) -> None:
        self._rank, self._world_size, self._timeout, self._device = rank, world_size, timeout, device
        here = [int(torch_xla._XLAC._xla_get_device_ordinal(name)) for name in xm.get_xla_supported_devices()]
        if len(here) > 1:
            self._meeting = _replicas.meeting(self._connection, here)

    def all_reduce(self, tensors: Sequence[torch.Tensor], op: str, group: Any) -> Handle:
        with self._graph():
            for tensor, wire in zip(tensors, _reduced(op, tensors), strict=True):
                tensor.copy_(wire)
        return Recorded()

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        with self._graph():
            out.copy_(xm.all_gather(tensor.unsqueeze(0), dim=0, pin_layout=False))
        return Recorded()

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str, group: Any) -> Handle:
        with self._graph():
            if op in ("min", "max") and tensor.is_floating_point():
                out.copy_(self._row(_reduced(op, [tensor])[0]))
            else:
                kind, size = _XLA_OPS[op], self._world_size
                mine = xm.reduce_scatter(kind, tensor, scale=1.0, scatter_dim=0, shard_count=size, pin_layout=False)
                out.copy_(mine.squeeze(0))
        return Recorded()

    def broadcast(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        """A sum to which all but `src` add 0: one program on all ranks, and exact but for -0.0, which becomes 0."""
        mine = torch.tensor(self._rank == src).to(self._device)  # data, not a constant of the graph
        wire = tensor
        if tensor.dtype is torch.bool:
            wire = tensor.to(torch.uint8)
        elif tensor.is_floating_point() and tensor.dtype not in _SUMMED:
            wire = tensor.float()
        with self._graph():
            wire = torch.where(mine, wire, torch.zeros_like(wire))
            xm.all_reduce(xm.REDUCE_SUM, [wire], pin_layout=False)
            tensor.copy_(wire)
        return Recorded()

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        with self._graph():
            out.copy_(xm.all_to_all(tensor, 0, 0, self._world_size, pin_layout=False))
        return Recorded()

    def _row(self, rows: torch.Tensor) -> torch.Tensor:
        """This rank's row, by an index that is data: as a number it would make a program of its own on each rank."""
        return rows.index_select(0, torch.tensor([self._rank]).to(self._device)).squeeze(0)

    def send(self, tensor: torch.Tensor, dst: int, group: Any) -> Handle:
        raise UnsupportedError(f"send is unsupported on backend 'xla': {ALONE}")

    def recv(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        raise UnsupportedError(f"recv is unsupported on backend 'xla': {ALONE}")

    def new_group(self, ranks: Sequence[int], timeout: float) -> Any:
        if len(ranks) in (1, self._world_size):
            return None  # of one rank: nothing is ever sent
        raise UnsupportedError(f"new_group({list(ranks)}) is unsupported on backend 'xla': {ALONE}")

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        self._in_graph = True
        try:
            yield
        finally:
            self._in_graph = False

    def digest(self, tensors: Sequence[torch.Tensor]) -> str:
        return str(torch_xla._XLAC._get_graph_hash(list(tensors)).hex())

    def cut(self) -> None:
        if self._meeting is None:
            self._flush()
            self._pending = False
            return
        # sync() drops the token that orders collectives, and with it inputs of the program that it has just started,
        # which blocks before the other replicas have started theirs (see _replicas): kept until they have.
        token = xm._get_all_reduce_token()
        self._meeting.run(self._rank, self._timeout, self._flush)
        self._pending = False
        del token

    def abort(self) -> None:
        if self._meeting is not None:
            self._meeting.give_up()
        if self._pending:  # it could never run any more, and whatever cuts next would run it on this rank alone
            torch_xla._XLAC._clear_pending_irs(str(self._device))
            self._pending = False

    def destroy(self) -> None:
        if self._meeting is not None:
            self._meeting.leave(self._rank)
        self._meeting = None

    @contextlib.contextmanager
    def _graph(self) -> Iterator[None]:
        """What is recorded inside joins the caller's graph while `recording`, else a graph of its own that runs now."""
        if self._in_graph:
            self._pending = True
            yield
            return
        self._flush()
        yield
        self.cut()


def _reduced(op: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """New tensors that hold the reduction of `tensors` over all ranks; a NaN on any rank reaches every rank.

    torch_xla's form that writes in place misses a transposed view (2.9), and CPU's min and max drop a NaN: where one
    was travels beside the values, in one operation, since PJRT's CPU client may run two independent ones of a program
    in different order on two replicas, which hangs both (torch_xla 2.9).
    """
    if op not in ("min", "max") or not tensors[0].is_floating_point():
        wires = [tensor.clone() for tensor in tensors]
        xm.all_reduce(_XLA_OPS[op], wires, pin_layout=False)
        return wires
    signed = [-tensor if op == "min" else tensor for tensor in tensors]  # the least is minus the greatest of the minus
    wires = [torch.where(values.isnan(), torch.full_like(values, -math.inf), values) for values in signed]
    missing = [values.isnan().to(values.dtype) for values in signed]
    xm.all_reduce(xm.REDUCE_MAX, [*wires, *missing], pin_layout=False)
    kept = [torch.where(m > 0, torch.full_like(w, math.nan), w) for w, m in zip(wires, missing, strict=True)]
    return [-values if op == "min" else values for values in kept]
