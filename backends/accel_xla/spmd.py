"""SPMD: one process drives all devices, and the compiler splits each batch over them (`ACCEL_XLA_SPMD=1`).

The session has world size 1 and a loader's batch is the global one: its first dimension is split over a mesh of all
devices, everything else is held by each of them, and XLA adds the collectives. Once on, it is on for the process
(torch_xla 2.9).
"""

from __future__ import annotations

import logging

import numpy as np
import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

from accel.device import DeviceProperties
from accel_xla.device import XlaDevice

log = logging.getLogger("accel")


class SpmdDevice(XlaDevice):
    """All XLA devices of the process as one."""

    def __init__(self) -> None:
        if not xr.is_spmd():
            xr.use_spmd()
        self._count = int(xr.global_runtime_device_count())
        self._mesh = xs.Mesh(np.arange(self._count), (self._count,), ("data",))
        self._whole: set[torch.Size] = set()  # shapes that could not be split, reported already

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` split along its first dimension; whole on every device where that does not divide evenly."""
        moved = super().move(tensor)
        if moved.dim() and moved.shape[0] and moved.shape[0] % self._count == 0:
            xs.mark_sharding(moved, self._mesh, ("data", *[None] * (moved.dim() - 1)))
        elif moved.dim() and moved.shape not in self._whole:
            self._whole.add(moved.shape)
            log.warning(
                "a tensor of shape %s cannot be split over %d devices: each computes all of it; use a batch size that "
                "is a multiple of %d",
                list(moved.shape), self._count, self._count,
            )  # fmt: skip
        return moved

    def properties(self, index: int | None = None) -> DeviceProperties:
        one = super().properties(index)
        return one._replace(extra={**one.extra, "spmd_devices": str(self._count)})
