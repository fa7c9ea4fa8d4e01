"""Transport of the torch_tpu backend: c10d's `tpu_dist`, one process for each chip."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from accel._c10d import C10dTransport
from accel.errors import LaunchError

_INTEGERS = frozenset({torch.int32, torch.int64})
_FLOATS = frozenset({torch.bfloat16, torch.float32})
# What torch_tpu's set_tpu_launch_env writes for the workers of a host, before they start (0.2.0).
LAUNCH = ("TORCH_TPU_TOPOLOGY", "TORCH_TPU_SLICEBUILDER_ADDRESSES")


class TpuTransport(C10dTransport):
    """tpu_dist between processes. What no TPU has confirmed is carried in a form that every fabric has."""

    name = "tpu_dist"
    c10d_backend = "tpu_dist"
    native_dtypes = _INTEGERS | _FLOATS | {torch.uint8}
    native_reductions: Mapping[str, frozenset[torch.dtype]] = {
        "sum": _INTEGERS | _FLOATS,
        "product": _INTEGERS | _FLOATS,
        "min": _INTEGERS,  # whether floating ones keep a NaN is not known
        "max": _INTEGERS,
        "mean": frozenset(),  # torch_xla's raises, on the same compiler
    }

    def init(self, store: Any, rank: int, world_size: int, timeout: float, device: torch.device) -> None:
        missing = [name for name in LAUNCH if not os.environ.get(name)]
        if missing:
            raise LaunchError(
                f"{' and '.join(missing)} are not set: each of {world_size} processes needs a chip of its own; call "
                "torch.tpu.distributed.set_tpu_launch_env() before the processes start, or set both by hand"
            )
        super().init(store, rank, world_size, timeout, device)

    def abort(self) -> None:
        pass  # tpu_dist has no abort (0.2.0); the control plane tells the other ranks, and the process ends
