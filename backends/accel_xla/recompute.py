"""How a recomputation on XLA equals its forward: the generator's state, autocast, and inputs that the compiler takes
for others.

torch's checkpoint does the first two through a device module, which torch_xla lacks (2.9). The third is XLA's own need:
its compiler finds that forward and recomputation are one computation and keeps the activations after all, unless the
inputs have passed a barrier (as in torch_xla.utils.checkpoint, 2.9).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch_xla.core.xla_model as xm

from accel.recompute import Replay


class XlaReplayer:
    """What `accel.checkpoint` asks of this device type."""

    def capture(self, device: torch.device) -> Replay:
        where = str(device)
        state = xm.get_rng_state(where)
        enabled, dtype = torch.is_autocast_enabled("xla"), torch.get_autocast_dtype("xla")
        cached = torch.is_autocast_cache_enabled()

        @contextlib.contextmanager
        def replay() -> Iterator[None]:
            now = xm.get_rng_state(where)
            xm.set_rng_state(state, where)
            try:
                with torch.autocast("xla", dtype=dtype, enabled=enabled, cache_enabled=cached):
                    yield
            finally:
                xm.set_rng_state(now, where)

        return replay

    def apart(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone()
        xm.optimization_barrier_([copy])
        return copy.requires_grad_(tensor.requires_grad)
