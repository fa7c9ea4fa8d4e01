"""The CPU as a device: always one, and its memory is the host's."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accel.device import DeviceProperties, Disturbance
from accel.eager import EagerDevice, foreign_generator
from accel.errors import ArgumentError
from accel_cpu.memory import total_memory

RAPL = Path("/sys/class/powercap")  # running average power limit: an energy counter for each processor package
# x86 kernels count here how often a core or package was held below its clock for its temperature.
THERMAL, COUNTERS = Path("/sys/devices/system/cpu"), "cpu[0-9]*/thermal_throttle/*_throttle_count"
HOST = torch.device("cpu")


class CpuDevice(EagerDevice):
    """The one CPU device of a process; torch gives it no index."""

    is_host = True
    metric_dtype = torch.float64

    def __init__(self) -> None:
        super().__init__("cpu")
        self._throttled = _throttle_count()

    @property
    def torch_device(self) -> torch.device:
        return HOST

    def current(self) -> int:
        return 0  # torch.cpu.current_device() is the string "cpu" (torch 2.13)

    def properties(self, index: int | None = None) -> DeviceProperties:
        self.checked(index)
        extra = {"instruction_set": torch.backends.cpu.get_cpu_capability(), "threads": str(torch.get_num_threads())}
        return DeviceProperties(_model_name(), total_memory()[0], os.cpu_count(), extra)

    def synchronize(self) -> None:
        pass  # operations have finished when their call returns

    def counters(self) -> dict[str, int]:
        return {**super().counters(), "fallbacks": 0}  # the device is the host: nothing falls back to it

    def uncounted(self) -> Mapping[str, str]:
        return {}

    def event(self, timing: bool = False) -> CpuEvent:
        return CpuEvent(timing)

    def energy(self, index: int | None = None) -> float | None:
        self.checked(index)
        try:
            counters = [int((zone / "energy_uj").read_text()) for zone in sorted(RAPL.glob("intel-rapl:[0-9]*"))
                        if zone.name.count(":") == 1]  # fmt: skip
        except (OSError, ValueError):  # since Linux 5.10 only root may read them
            return None
        return sum(counters) / 1e6 if counters else None

    def disturbance(self, index: int | None = None) -> Disturbance:
        self.checked(index)
        before, self._throttled = self._throttled, _throttle_count()
        reasons = {"processes": "every process of a host may use its cores; their load is told instead"}
        if before is None or self._throttled is None:
            reasons["throttled"] = f"the kernel shows no {THERMAL}/{COUNTERS} here, as in a virtual machine"
            return Disturbance(None, None, reasons)
        return Disturbance(("heat",) if self._throttled > before else (), None, reasons)

    def _device_rng_state(self) -> dict[str, Any]:
        return {}  # the host's torch generator is the device's

    def _set_device_rng_state(self, state: dict[str, Any]) -> list[str]:
        return [foreign_generator(name, self.type) for name in state]

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.device.type == "cpu" else tensor.to("cpu")


class CpuEvent:
    """An event on a device whose operations have finished when their call returns.

    torch.cpu.Event has no `elapsed_time` (torch 2.13), which timing through one interface needs.
    """

    def __init__(self, timing: bool = False) -> None:
        self._timing = timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: CpuEvent) -> float:
        """Milliseconds from this event to `end`. Raises `ArgumentError` unless both record time and were recorded."""
        if not (self._timing and end._timing) or self._at is None or end._at is None:
            raise ArgumentError("elapsed_time: both events must be made with event(timing=True) and recorded")
        return (end._at - self._at) * 1e3


def _throttle_count() -> int | None:
    """Times that a core or package was held down for heat since the host started; None where nobody counts."""
    try:
        counts = [int(file.read_text()) for file in THERMAL.glob(COUNTERS)]
    except (OSError, ValueError):
        return None
    return sum(counts) if counts else None


def _model_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:  # no procfs on this system
        pass
    return platform.processor() or platform.machine() or None
