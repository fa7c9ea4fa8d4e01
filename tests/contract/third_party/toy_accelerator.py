"""A third party's backend in one file: the host's CPU under another name, over gloo."""

from __future__ import annotations

from pathlib import Path

import torch

from accel._c10d import C10dTransport
from accel._lowering import cells
from accel.backend import BackendInfo, BackendParts
from accel.capabilities import CapabilityTable, native, unsupported
from accel.device import DeviceProperties
from accel.eager import EagerDevice
from accel.errors import ArgumentError, UnsupportedError
from accel.memory import FIELDS, Memory, MemoryStats
from accel.numerics import Numerics

FLOATS = frozenset({torch.float32, torch.float64})
WHOLE = frozenset({torch.uint8, torch.int8, torch.int32, torch.int64})


class ToyDevice(EagerDevice):
    is_host = True

    def __init__(self) -> None:
        super().__init__("cpu")

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def current(self) -> int:
        return 0

    def properties(self, index: int | None = None) -> DeviceProperties:
        self.checked(index)
        return DeviceProperties("Toy accelerator", None, None, {})

    def synchronize(self) -> None:
        pass

    def event(self, timing: bool = False) -> object:
        raise UnsupportedError("events are unsupported on the toy accelerator")

    def stream(self) -> object:
        raise UnsupportedError("streams are unsupported on the toy accelerator")

    def _device_rng_state(self) -> dict[str, object]:
        return {}

    def _set_device_rng_state(self, state: dict[str, object]) -> list[str]:
        return [f"the random state of {name!r} is not this device's" for name in state]


class ToyTransport(C10dTransport):
    name = "toy"
    c10d_backend = "gloo"
    blocks = True
    native_dtypes = FLOATS | WHOLE
    native_reductions = {"sum": FLOATS | WHOLE, "product": FLOATS | WHOLE, "min": WHOLE, "max": WHOLE}  # noqa: RUF012


class ToyNumerics(Numerics):
    device_type = "cpu"
    widened = "AutocastCPU", ("softmax.int", "log_softmax.int", "layer_norm", "group_norm")  # not on the CPU's own list

    def snapshot(self) -> bool:
        return torch.are_deterministic_algorithms_enabled()

    def set(self, policy: str, deterministic: bool) -> None:
        torch.use_deterministic_algorithms(deterministic)

    def put_back(self, found: bool) -> None:
        torch.use_deterministic_algorithms(found)

    def read(self) -> dict[str, str]:
        return {"deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled())}

    def autocast_dtype(self, policy: str) -> torch.dtype | None:
        return torch.bfloat16 if policy == "bf16" else None

    def arithmetic(self) -> str:
        return "fp32"  # a toy has no faster unit


class ToyMemory(Memory):
    def stats(self, index: int | None = None) -> MemoryStats:
        if index not in (None, 0):
            raise ArgumentError(f"index={index!r}: there is one toy accelerator")
        return MemoryStats(reasons=dict.fromkeys(FIELDS, "the toy accelerator keeps no figures"))

    def reset_peak(self) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def snapshot(self, path: str | Path) -> None:
        raise UnsupportedError(f"snapshot({str(path)!r}): the toy accelerator keeps no history")


class ToySpec:
    name = "toy"
    aliases = ("plaything",)

    def hardware(self) -> str | None:
        return None

    def probe(self) -> BackendInfo:
        return BackendInfo("toy", usable=True, reason="always there", origin="emulated", aliases=self.aliases)

    def load(self) -> BackendParts:
        transport = ToyTransport()
        table = {f"precision.{policy}": native("as on the host") for policy in ("fp32", "tf32", "bf16")}
        table["train.checkpoint"] = native("as on the host")
        table["collective.processes"] = native("gloo")
        absent = (
            "precision.fp16",
            "device.stream",
            "device.event",
            "memory.allocated",
            "memory.reserved",
            "memory.peak_reset",
        )
        table |= dict.fromkeys(
            (*absent, "memory.snapshot", "prepare.compile", "prepare.sync_batchnorm"), unsupported("a toy")
        )
        capabilities = CapabilityTable("toy", {**table, **cells(transport)})
        return BackendParts(ToyDevice(), transport, ToyNumerics(), ToyMemory(), capabilities)


SPEC = ToySpec()
