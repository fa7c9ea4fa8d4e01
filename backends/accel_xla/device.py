"""XLA devices of a process: a graph is recorded and runs at a cut; there are no streams.

torch has no device module for them (`torch.get_device_module("xla")` raises, torch 2.9), so nothing here is shared
with eager devices but the host's generators.
"""

from __future__ import annotations

import os
import random
from typing import Any, NoReturn

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.debug import metrics

from accel.device import Device, DeviceProperties
from accel.eager import HOST_GENERATORS, foreign_generator, host_rng_state, set_host_rng_state
from accel.errors import UnsupportedError

READS = "aten::_local_scalar_dense"  # a value that the user reads (.item(), float(t)), not an operation run on the host


class XlaDevice(Device):
    """The devices of PJRT's client in this process."""

    type = "xla"
    kind = "lazy"

    @property
    def torch_device(self) -> torch.device:
        device: torch.device = torch_xla.device()
        return device

    def count(self) -> int:
        return int(xr.addressable_device_count())  # starts the client: only it knows how many devices a chip has

    def current(self) -> int:
        return int(self.torch_device.index)

    def set(self, index: int) -> None:
        torch_xla.device(self.checked(index))

    def properties(self, index: int | None = None) -> DeviceProperties:
        device = self.at(index)
        client = str(xr.device_type())
        kind = xm.xla_device_kind(str(device))
        name = "XLA on CPU" if client == "CPU" else kind
        extra = {"pjrt_client": client, "device_kind": kind, "xla_flags": os.environ.get("XLA_FLAGS", "").strip()}
        for variable in ("TPU_ACCELERATOR_TYPE", "LIBTPU_INIT_ARGS"):
            if os.environ.get(variable):
                extra[variable.lower()] = os.environ[variable]
        return DeviceProperties(name, None, None, extra)

    def synchronize(self) -> None:
        xm.wait_device_ops()

    def flush(self) -> None:
        state = xm.get_rng_state()
        torch_xla.sync()
        # sync() moves the generator on (torch_xla 2.9). Put back, random numbers depend on what was drawn, not on where
        # the graph was cut, and a run that saves a checkpoint goes on as one that does not (T52).
        xm.set_rng_state(state)

    def seed(self, n: int) -> None:
        random.seed(n)
        np.random.seed(n % 2**32)  # numpy's legacy generator takes 32 bits
        torch.manual_seed(n)
        torch_xla.manual_seed(n)  # torch.manual_seed does not reach it (torch_xla 2.9, T61)

    def rng_state(self) -> dict[str, Any]:
        return {**host_rng_state(), self.type: int(xm.get_rng_state())}

    def set_rng_state(self, state: dict[str, Any]) -> list[str]:
        notes = set_host_rng_state(state)
        if self.type not in state:
            notes.append(f"the saved random state has no part {self.type!r}; that generator goes on as it is")
        for name, value in state.items():
            if name == self.type and isinstance(value, int):
                xm.set_rng_state(value)
            elif name not in HOST_GENERATORS:
                notes.append(foreign_generator(name, self.type))
        return notes

    def counters(self) -> dict[str, int]:
        return {
            "compiles": int(metrics.counter_value("UncachedCompile") or 0),
            "fallbacks": sum(self.fallback_operations().values()),
        }

    def fallback_operations(self) -> dict[str, int]:
        names = (name for name in metrics.executed_fallback_ops() if name != READS)
        return {name: int(metrics.counter_value(name) or 0) for name in names}

    def host_reads(self) -> int:
        data = metrics.metric_data("TransferFromDeviceTime")
        return int(data[0]) if data else 0

    def at(self, index: int | None) -> torch.device:
        """The device `index` (default: current), without making it current."""
        return torch.device(self.type, self.checked(index))

    def stream(self) -> NoReturn:
        raise UnsupportedError("device.stream is unsupported on backend 'xla': a lazy device orders work by its graph")

    def event(self, timing: bool = False) -> NoReturn:
        raise UnsupportedError("device.event is unsupported on backend 'xla': a lazy device has no streams")
