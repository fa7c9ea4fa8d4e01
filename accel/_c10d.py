"""`C10dTransport`: the transport over `torch.distributed`, common to every eager backend (gloo, nccl, hccl).

Owns the process group's life and the translation of `Transport` into torch.distributed calls. A vendor's
`transport.py` gives the c10d backend's name and what that backend carries and reduces natively.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from accel._tensors import joined
from accel._wait import SLICE
from accel._waiters import Waiters
from accel.errors import BackendError
from accel.transport import Handle, Transport

REDUCE = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
_SLICE = timedelta(seconds=SLICE)
_REDUCE_OPTIONS: dict[str, Any] = {name: dist.AllreduceOptions() for name in REDUCE}
for _name, _options in _REDUCE_OPTIONS.items():
    _options.reduceOp, _options.asyncOp = REDUCE[_name], True
# Newer names of the same operations; the old ones warn from torch 2.13 on.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class C10dHandle(Handle):
    """A c10d `Work`. `blocks`: its wait blocks the host and may be sliced (gloo), instead of ordering streams (nccl,
    hccl).
    """

    def __init__(self, work: Any, blocks: bool, finish: Callable[[], object] | None = None) -> None:
        self._work = work
        self._blocks = blocks
        self._finish = finish
        self._finished = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._finished:
            return True
        if self._blocks and timeout is not None:
            try:
                self._work.wait(_SLICE if timeout == SLICE else timedelta(seconds=timeout))
            except RuntimeError:
                if not self._work.is_completed():
                    return False
                self._work.wait()  # over meanwhile: returns at once, or raises the real error
        else:
            self._work.wait()
        if self._finish is not None:
            self._finish()
        self._finished = True
        return True

    def done(self) -> bool:
        return self._finished or bool(self._work.is_completed())


class C10dTransport(Transport):
    """Tensor operations through torch.distributed's default process group, made here or found."""

    c10d_backend: ClassVar[str]
    blocks: ClassVar[bool] = False  # True where waiting blocks the host (gloo); False where it orders streams
    grace: ClassVar[float] = 0.0  # seconds that the fabric's own limit is longer, so that accel's error comes first

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._created = False
        self._groups: list[Any] = []
        self._world: Any = None
        self._waiters: Waiters | None = None  # for sends and receives, from the first one on

    def init(self, store: Any, rank: int, world_size: int, timeout: float, device: torch.device) -> None:
        self._device = device
        if dist.is_initialized():
            self._accept(rank, world_size)
            self._world = dist.group.WORLD
            return
        dist.init_process_group(
            self.c10d_backend,
            store=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout + self.grace),
            device_id=None if device.index is None else device,
        )
        self._created = True
        self._world = dist.group.WORLD
        self._groups.append(self._world)
        if self.blocks:
            atexit.register(self._keep)

    def all_reduce(self, tensors: Sequence[torch.Tensor], op: str, group: Any) -> Handle:
        """The process group's own call. What `dist.all_reduce` does around it costs as much as accel's own checks
        (torch 2.13), and is made for what never comes here: complex tensors, groups that lack this rank.
        """
        process_group = self._world if group is None else group
        if len(tensors) == 1:
            return C10dHandle(process_group.allreduce(tensors, _REDUCE_OPTIONS[op]), self.blocks)
        flat, unpack = joined(tensors)
        return C10dHandle(process_group.allreduce([flat], _REDUCE_OPTIONS[op]), self.blocks, unpack)

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        return self._handle(all_gather_single(out, tensor.unsqueeze(0), group, async_op=True))

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str, group: Any) -> Handle:
        return self._handle(reduce_scatter_single(out.unsqueeze(0), tensor, REDUCE[op], group, async_op=True))

    def broadcast(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        return self._handle(dist.broadcast(tensor, src, group, async_op=True))

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        return self._handle(dist.all_to_all_single(out, tensor, group=group, async_op=True))

    def send(self, tensor: torch.Tensor, dst: int, group: Any) -> Handle:
        return self._point_to_point(dist.isend(tensor, dst, group))

    def recv(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        return self._point_to_point(dist.irecv(tensor, src, group))

    def new_group(self, ranks: Sequence[int], timeout: float) -> Any:
        group = dist.new_group(list(ranks), timeout=timedelta(seconds=timeout + self.grace), backend=self.c10d_backend)
        if dist.get_rank() in ranks:
            self._groups.append(group)
        return group

    def abort(self) -> None:
        """Streams: abort the communicators. gloo: nothing ends a blocked operation (torch 2.13), so let go of it."""
        if self.blocks:
            self._keep()
            return
        for group in self._groups:
            group.abort()

    def destroy(self) -> None:
        """Leave what was created here; a process group that the user had initialised stays."""
        atexit.unregister(self._keep)
        self._world = None
        if self._waiters is not None:
            self._waiters.close()
            self._waiters = None
        created, self._groups = self._groups, []
        if self._created:
            self._created = False
            try:
                dist.destroy_process_group()
            except RuntimeError:  # the group stays then, and a later session would take it for the user's
                with contextlib.suppress(RuntimeError):
                    for group in created:
                        group.abort()
                    dist.destroy_process_group()
                raise
            return
        for group in created:
            dist.destroy_process_group(group)

    def _accept(self, rank: int, world_size: int) -> None:
        """Use the process group that the user has initialised, where it is the one that we would have made."""
        found = dict(part.split(":") for part in dist.get_backend_config().split(","))
        theirs = (found.get(self._device.type), dist.get_rank(), dist.get_world_size())
        ours = (self.c10d_backend, rank, world_size)
        if theirs != ours:
            raise BackendError(
                f"torch.distributed is already initialised with backend, rank, world size {theirs} for device type "
                f"{self._device.type!r}; accel needs {ours}: initialise it so, or leave it to accel.init"
            )

    def _handle(self, work: Any) -> Handle:
        return C10dHandle(work, self.blocks)

    def _point_to_point(self, work: Any) -> Handle:
        if not self.blocks:
            return C10dHandle(work, False)
        if self._waiters is None:
            self._waiters = Waiters()
        return self._waiters.handle(work)

    def _keep(self) -> None:
        """Keep gloo's groups from ever being destroyed: their destructor joins worker threads, and a thread in an
        operation whose peer never comes would hold up the end of the process until the group's time limit (torch
        2.13).
        """
        for group in self._groups:
            keep_forever(group._get_backend(self._device))


def keep_forever(obj: object) -> None:
    """Give `obj` a reference that nothing releases, so that its destructor never runs."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
