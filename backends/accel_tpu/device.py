"""TPU devices of torch_tpu. Most of `torch.tpu` refuses its users and points to `torch.accelerator`, used here.

torch_tpu binds a process to one device and refuses to change it (0.2.0): there is one, with accel's index 0.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch

from accel import _probe
from accel._copies import Copies
from accel.device import DeviceProperties
from accel.eager import EagerDevice
from accel.errors import UnsupportedError

NO_STREAMS = "a stream of torch_tpu orders nothing: there is one implicit stream (0.2.0)"


class TpuDevice(EagerDevice):
    """The one TPU device of a process."""

    def __init__(self) -> None:
        super().__init__("tpu")

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.type, self.bound())

    def count(self) -> int:
        return 1

    def current(self) -> int:
        return 0

    def set(self, index: int) -> None:
        self.checked(index)  # the only device is current already

    def properties(self, index: int | None = None) -> DeviceProperties:
        self.checked(index)
        with experimental():
            name = str(self._module.get_device_name())
            try:
                total = int(self._module.get_device_properties().total_memory)
            except RuntimeError:  # a generation that torch_tpu does not know
                total = None
        extra = _probe.versions("libtpu")
        if os.environ.get("TPU_ACCELERATOR_TYPE"):
            extra["tpu_accelerator_type"] = os.environ["TPU_ACCELERATOR_TYPE"]
        return DeviceProperties(name, total, None, extra)

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self.bound())

    def counters(self) -> dict[str, int]:
        # Each operation is compiled for its shapes at first use: the misses of that cache are what was compiled. One
        # that the TPU lacks raises; none runs on the host (0.2.0).
        return {"compiles": int(self._module._get_cache_misses()), "fallbacks": 0}

    def uncounted(self) -> Mapping[str, str]:
        return {}

    def stream(self) -> NoReturn:
        raise UnsupportedError(f"device.stream is unsupported on backend 'tpu': {NO_STREAMS}")

    def event(self, timing: bool = False) -> Any:
        return torch.Event(self.torch_device, enable_timing=timing)

    def copies(self) -> Copies:
        return Copies(self.move)  # a stream of torch_tpu orders nothing: copies on one would not be waited for

    def _device_rng_state(self) -> dict[str, Any]:
        return {self.type: self._generator().get_state()}

    def _set_device_rng_state(self, state: dict[str, Any]) -> list[str]:
        if self.type in state:
            self._generator().set_state(state[self.type])
        return super()._set_device_rng_state({name: value for name, value in state.items() if name != self.type})

    def bound(self) -> int:
        """The index by which torch names the device that this process is bound to."""
        return int(torch.accelerator.current_device_index())

    def start(self) -> None:
        """Start the TPU's client. Raises `RuntimeError` where it does not start.

        Without this question an operation on a TPU that does not start ends the process with SIGABRT (0.2.0).
        """
        self._generator()

    def _generator(self) -> torch.Generator:
        # get_rng_state points to torch.accelerator.random, which torch 2.13 does not have.
        with experimental():
            generator: torch.Generator = self._module.default_generators[self.bound()]
        return generator


@contextlib.contextmanager
def experimental() -> Iterator[None]:
    """Use a part of torch_tpu that warns of being experimental; accel has decided to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="<TorchTpu/ApiStage/ExperimentalApi/>")
        yield
