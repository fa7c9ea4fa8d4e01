"""Transport of the XLA backend: one process and one device, which has nobody to send to.

Processes under torchrun would each be a world of their own on PJRT's CPU client, whose collectives return their own
input (torch_xla 2.9): joining is refused, so that nothing is ever reduced over one rank in the belief that it was all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from accel.errors import UnsupportedError
from accel.transport import Handle, Transport

ONE_PROCESS = (
    "this version runs one process on one device: processes of torch_xla that a launcher such as torchrun starts are "
    "each a world of their own, and would train apart without a word"
)
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class XlaTransport(Transport):
    """World size 1. The dtypes are those that XLA holds and adds up, which a world of one still asks for."""

    name = "xla"
    native_dtypes = _INTEGERS | _FLOATS | {torch.bool}
    native_reductions: Mapping[str, frozenset[torch.dtype]] = {
        "sum": _INTEGERS | _FLOATS,
        "product": _INTEGERS | _FLOATS,
        "min": _INTEGERS,
        "max": _INTEGERS,
        "mean": frozenset(),  # torch_xla's AVG raises (2.9)
    }

    def init(self, store: Any, rank: int, world_size: int, timeout: float, device: torch.device) -> None:
        _refuse("joining other ranks")

    def all_reduce(self, tensors: Sequence[torch.Tensor], op: str, group: Any) -> Handle:
        _refuse("all_reduce")

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        _refuse("all_gather")

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str, group: Any) -> Handle:
        _refuse("reduce_scatter")

    def broadcast(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        _refuse("broadcast")

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, group: Any) -> Handle:
        _refuse("all_to_all")

    def send(self, tensor: torch.Tensor, dst: int, group: Any) -> Handle:
        _refuse("send")

    def recv(self, tensor: torch.Tensor, src: int, group: Any) -> Handle:
        _refuse("recv")

    def new_group(self, ranks: Sequence[int], timeout: float) -> Any:
        _refuse("new_group")

    def abort(self) -> None:
        pass  # nothing is ever in flight

    def destroy(self) -> None:
        pass  # nothing was joined


def _refuse(what: str) -> NoReturn:
    raise UnsupportedError(f"{what} is unsupported on backend 'xla': {ONE_PROCESS}")
