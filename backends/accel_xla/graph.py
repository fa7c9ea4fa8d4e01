"""The graph that an XLA device has recorded and not run yet: as StableHLO text, and collectives put into it.

For compilation ahead of time (`accel.aot`); nothing here runs while training.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import torch
import torch_xla
import torch_xla.core.xla_model as xm

# torch_xla 2.9 asks it at each all_reduce; without it a process with one device records none.
ALWAYS_ALL_REDUCE = "XLA_ALWAYS_ALLREDUCE"


def recorded() -> str:
    """The StableHLO text of what the next cut would run; "" when nothing is pending. Runs nothing.

    As text: the bytecode that torch_xla 2.9 writes cannot be read by every jax.
    """
    text: str = xm.get_stablehlo([])
    return text


def forget() -> None:
    """Drop what is pending: tensors that wait for it lose their values, and no later cut of this process runs it."""
    torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))


def average(tensors: Sequence[torch.Tensor], replicas: int) -> None:
    """Record, in place, the mean of `tensors` over `replicas` devices that will run this graph: one all_reduce."""
    with _all_reduce_of_one_device():
        xm.all_reduce(xm.REDUCE_SUM, list(tensors), scale=1.0 / replicas, pin_layout=False)


@contextlib.contextmanager
def _all_reduce_of_one_device() -> Iterator[None]:
    before = os.environ.get(ALWAYS_ALL_REDUCE)
    os.environ[ALWAYS_ALL_REDUCE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ALWAYS_ALL_REDUCE]
        else:
            os.environ[ALWAYS_ALL_REDUCE] = before
