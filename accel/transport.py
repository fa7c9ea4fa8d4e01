"""`Transport`: the few tensor operations a vendor's fabric gives (NCCL, HCCL, XLA, gloo).

A transport sees only contiguous tensors of dtypes and reductions that it lists as native; `accel.collective` does the
widening, strides, NaN rules, checks and emulation once for everybody. It knows nothing of objects, barriers or checks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

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

    name: str  # the fabric's name: "gloo", "nccl", "hccl", "xla"
    native_dtypes: frozenset[torch.dtype]  # carried as they are
    native_reductions: Mapping[str, frozenset[torch.dtype]]  # reduce op -> dtypes reduced as they are

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

    def fault(self, error: RuntimeError) -> str | None:
        """What an error of this fabric means and what to change, in one line; None where `error` is not the fabric's,
        or says all itself.
        """
        return None

    @abstractmethod
    def abort(self) -> None:
        """Give up all operations in flight, as far as the fabric can."""

    @abstractmethod
    def destroy(self) -> None:
        """Leave the fabric; `init` may be called again afterwards."""
