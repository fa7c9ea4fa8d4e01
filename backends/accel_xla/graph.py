"""The graph that an XLA device has recorded and not run yet: as StableHLO text, and collectives put into it.

For compilation ahead of time (`accel.aot`); nothing here runs while training.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch_xla.core.xla_model as xm

from accel.errors import UnsupportedError

# Without it torch_xla leaves all_reduce out of the graph of a process with one device (torch_xla 2.9).
ALWAYS_ALL_REDUCE = "XLA_ALWAYS_ALLREDUCE"


def recorded() -> str:
    """The StableHLO text of what the next cut would run; "" when nothing is pending. Runs nothing.

    As text: the bytecode that torch_xla 2.9 writes cannot be read by every jax.
    """
    text: str = xm.get_stablehlo([])
    return text


def average(tensors: Sequence[torch.Tensor], replicas: int) -> None:
    """Record, in place, the mean of `tensors` over `replicas` devices that will run this graph: one all_reduce."""
    if not os.environ.get(ALWAYS_ALL_REDUCE):
        raise UnsupportedError(
            f"a collective over {replicas} replicas needs {ALWAYS_ALL_REDUCE}=1 before torch_xla loads"
        )
    xm.all_reduce(xm.REDUCE_SUM, list(tensors), scale=1.0 / replicas, pin_layout=False)
