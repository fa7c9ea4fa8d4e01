"""`Device`: one kind of hardware as a process sees it - index, synchronization, random numbers, counters.

Owns the interface only. `accel.eager.EagerDevice` carries everything that torch's device modules have in common; a
vendor's `device.py` holds what differs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from accel._copies import Copies
from accel.errors import ArgumentError, DeviceError, UnsupportedError


class DeviceProperties(NamedTuple):
    """What is known of one device; a field that cannot be known is None."""

    name: str | None  # what the driver or the operating system calls it
    total_memory: int | None  # bytes
    cores: int | None  # CPU cores, streaming multiprocessors, AI cores, tensor cores: the vendor's own unit
    extra: dict[str, str]  # vendor details for the record, such as driver version or instruction set


class Disturbance(NamedTuple):
    """Signs that a device is not at full clock, or not one process's own; None where it is not told."""

    throttled: tuple[str, ...] | None  # for what its clock is held down now, or was since the previous question
    processes: int | None  # all that use it, the one that asks among them
    reasons: dict[str, str]  # why a field is None, by its name


class Device(ABC):
    """The devices of one backend, as seen from this process."""

    type: str  # torch device type: "cuda", "npu", "xla", "cpu"
    kind: str  # "eager" or "lazy"
    is_host: bool = False  # whether the host's tensors are already on the device
    metric_dtype: torch.dtype = (
        torch.float32
    )  # in which sums of metrics are kept: the widest that every chip of the type has

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """The current device, with its index where the type has several."""

    @abstractmethod
    def count(self) -> int:
        """Number of devices visible to this process; never initialises one."""

    @abstractmethod
    def current(self) -> int: ...

    @abstractmethod
    def set(self, index: int) -> None:
        """Make `index` current. Raises `ArgumentError` when it is not below `count()`."""

    @abstractmethod
    def properties(self, index: int | None = None) -> DeviceProperties:
        """Properties of `index` (default: current)."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until all queued work has finished. Never cuts a lazy graph."""

    @abstractmethod
    def flush(self) -> None:
        """Cut a lazy graph and start its execution; nothing on eager devices."""

    @abstractmethod
    def seed(self, n: int) -> None:
        """Seed `random`, numpy, torch's CPU generator and this device's generators with `n`."""

    @abstractmethod
    def rng_state(self) -> dict[str, Any]:
        """Plain data and CPU tensors by generator: "python", "numpy", "torch" and, where it has its own, the device
        type.
        """

    @abstractmethod
    def set_rng_state(self, state: dict[str, Any]) -> list[str]:
        """Restore each generator named in `state` that exists here; return one note for each part not restored."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """`compiles` and `fallbacks` (operations run on the host) since the process started, where they are counted."""

    def uncounted(self) -> Mapping[str, str]:
        """Why a counter is missing from `counters()`, by its name."""
        return {}

    def fallback_operations(self) -> dict[str, int]:
        """How often each operation counted in `fallbacks` ran on the host since the process started, by name."""
        return {}

    def host_reads(self) -> int:
        """Tensors copied to the host since the process started, where a copy ends a lazy graph; 0 on eager devices."""
        return 0

    @abstractmethod
    def stream(self) -> Any:
        """A new stream. Raises `UnsupportedError` on lazy devices."""

    @abstractmethod
    def event(self, timing: bool = False) -> Any:
        """A new event. Raises `UnsupportedError` on lazy devices."""

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` on this device, copied without blocking the host where its memory allows it."""
        return tensor.to(self.torch_device, non_blocking=True)

    def copies(self) -> Copies:
        """What copies batches here ahead of their use."""
        return Copies(self.move)

    def identity(self, index: int | None = None) -> str | None:
        """A name of device `index` (default: current) that no other device of any host has; None where several
        processes may share one.
        """
        return None

    def energy(self, index: int | None = None) -> float | None:
        """Joules that device `index` (default: current) has taken since some fixed moment; None where nothing counts
        them, which the cell `device.energy` of the capability table explains.
        """
        return None

    def disturbance(self, index: int | None = None) -> Disturbance:
        """What keeps device `index` (default: current) from giving one process all it has, at this moment."""
        self.checked(index)
        why = f"nothing that accel can ask tells it of device type {self.type!r}"
        return Disturbance(None, None, {"throttled": why, "processes": why})

    def graphed(self, module: nn.Module, sample: torch.Tensor, autocast_dtype: torch.dtype | None) -> nn.Module:
        """`module` with its forward and backward recorded once for inputs like `sample` and replayed from then on.

        Raises `UnsupportedError` where the capability table says so (`train.graphs`).
        """
        raise UnsupportedError(f"train.graphs is unsupported on device type {self.type!r}")

    def explained(self, error: RuntimeError) -> DeviceError | None:
        """`error` with the advice that finds its cause, where the device raised it late; None for any other."""
        return None

    def checked(self, index: int | None) -> int:
        """`index`, or the current one. Raises `ArgumentError` when it is not below `count()`."""
        if index is None:
            return self.current()
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < self.count():
            raise ArgumentError(
                f"index={index!r}: {self.type} has {self.count()} device(s) visible to this process; "
                f"expected an int from 0 to {self.count() - 1}"
            )
        return index
