"""Transport of the CPU backend: gloo, and what it carries and reduces as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from accel._c10d import REDUCE, C10dHandle, C10dTransport
from accel.transport import Handle

# gloo knows eight types and bool; int16, uint16, uint32, uint64 and float8 raise "Invalid scalar type" (torch 2.13).
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class CpuTransport(C10dTransport):
    """gloo between processes, over TCP."""

    name = "gloo"
    c10d_backend = "gloo"
    blocks = True
    queues = True
    # bool moves as it is; complex is refused by all_to_all (torch 2.13), so it moves as bytes everywhere.
    native_dtypes = _INTEGERS | _FLOATS | {torch.bool}
    native_reductions: Mapping[str, frozenset[torch.dtype]] = {
        "sum": _INTEGERS | _FLOATS,
        "product": _INTEGERS | _FLOATS,
        # Floating min and max drop a NaN depending on the rank that holds it (torch 2.13).
        "min": _INTEGERS,
        "max": _INTEGERS,
        # mean is sum, then divide (overflows fp16); of integers it raises after the buffer has changed (torch 2.13).
        "mean": frozenset(),
    }

    def gradient_group(self, timeout: float) -> Any:
        return self.new_group(range(dist.get_world_size()), timeout)

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str, group: Any) -> Handle:
        # gloo's own is an all_reduce of a copy too, but its work ignores a timeout and is never completed (torch 2.13).
        everything = tensor.clone()
        row = dist.get_rank(group)
        work = dist.all_reduce(everything, REDUCE[op], group, async_op=True)
        return C10dHandle(work, self.blocks, lambda: out.copy_(everything[row]))
