"""`Transport`: the few tensor operations a vendor's fabric gives (NCCL, HCCL, XLA, gloo).

A transport sees only contiguous tensors of dtypes and reductions that it lists as native; `accel.collective` does the
widening, strides, NaN rules, checks and emulation once for everybody. It knows nothing of objects, barriers or checks.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accel.rendezvous import Rendezvous

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

REDUCE_OPS = ("sum", "mean", "min", "max", "product")


class Handle(ABC):
    """An operation in flight on the fabric."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Order the result before later work on the current stream; False when `timeout` seconds passed first."""

    @abstractmethod
    def done(self) -> bool: ...


class Transport(ABC):
    """Tensor operations between the ranks of a group. `group` is what `new_group` returned, or None for all ranks."""

    blocks: ClassVar[bool] = True  # whether waiting blocks the host (gloo); False where it orders streams (nccl, hccl)
    queues: ClassVar[bool] = False  # whether a launch returns at once whatever other ranks do, as gloo's
    fuses: ClassVar[bool] = False  # whether `all_reduce` of many tensors costs no copies, as where a graph fuses them
    name: str  # the fabric's name: "gloo", "nccl", "hccl", "xla"
    native_dtypes: frozenset[torch.dtype]  # carried as they are
    native_reductions: Mapping[str, frozenset[torch.dtype]]  # reduce op -> dtypes reduced as they are

    def place(self, launched: Rendezvous) -> Rendezvous:
        """This rank's place: what the launcher's variables say, unless the fabric knows its ranks itself.

        Raises `LaunchError` where the two contradict each other.
        """
        return launched

    def connect(self, place: Rendezvous, timeout: float) -> Store:
        """The store that the ranks of `place` share; `timeout` in seconds. Raises as `accel._store.connect` does."""
        from accel._store import connect

        return connect(place, timeout)

    @abstractmethod
    def init(self, store: Any, rank: int, world_size: int, timeout: float, device: torch.device) -> None:
        """Join the fabric. `store` is a `torch.distributed.Store` that all ranks share; `timeout` in seconds."""

    @abstractmethod
    def all_reduce(self, tensors: Sequence[torch.Tensor], op: str, group: Any) -> Handle:
        """Reduce each tensor in place; several tensors of one dtype go as one launch."""

    @abstractmethod
    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        """`out` has shape (group size, *tensor.shape)."""

    @abstractmethod
    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str, group: Any) -> Handle:
        """`tensor` has shape (group size, *out.shape)."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        """`src` is a global rank."""

    @abstractmethod
    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        """Both have shape (group size, ...); row j of `tensor` goes to rank j."""

    @abstractmethod
    def send(self, tensor: torch.Tensor, dst: int, group: Any) -> Handle: ...

    @abstractmethod
    def recv(self, tensor: torch.Tensor, src: int, group: Any) -> Handle: ...

    @abstractmethod
    def new_group(self, ranks: Sequence[int], timeout: float) -> Any:
        """A sub-group; called by every rank of the world in the same order."""

    def gradient_group(self, timeout: float) -> Any:
        """A further group of all ranks for the reductions inside backward, where one costs no device memory: nothing
        else can then pair with a gradient. None: they share the group of all ranks. Called by every rank, once.
        """
        return None

    def recording(self) -> AbstractContextManager[None]:
        """On a lazy device: operations inside become part of the graph that is being recorded, which `cut` runs.
        Outside each runs in a graph of its own. Nothing on eager devices.
        """
        return contextlib.nullcontext()

    def digest(self, tensors: Sequence[torch.Tensor]) -> str:
        """On a lazy device: what identifies the graph that `tensors` wait for; ranks can run equal ones together."""
        return ""

    def cut(self) -> None:  # noqa: B027 - there is nothing to run on eager devices
        """Run the recorded graph together with all other ranks; nothing on eager devices.

        Raises `CollectiveTimeout`, running nothing, where ranks do not come.
        """

    def fault(self, error: RuntimeError) -> str | None:
        """What an error of this fabric means and what to change, in one line; None where `error` is not the fabric's,
        or says all itself.
        """
        return None

    def flight_record(self) -> Any:
        """The fabric's own record of its latest operations as plain data, for the flight record; None where it keeps
        none. Called from any thread.
        """
        return None

    @abstractmethod
    def abort(self) -> None:
        """Give up all operations in flight, as far as the fabric can."""

    @abstractmethod
    def destroy(self) -> None:
        """Leave the fabric; `init` may be called again afterwards."""
