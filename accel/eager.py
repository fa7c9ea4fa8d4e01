"""`EagerDevice`: everything that torch's device modules have in common, over `torch.get_device_module(type)`.

A vendor's `device.py` derives from it and holds only what differs, each with its reason.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from accel._copies import Copies, StreamCopies
from accel.device import Device, DeviceProperties


class EagerDevice(Device):
    """Devices that execute on streams: cuda, npu, cpu, tpu through torch_tpu."""

    kind = "eager"

    def __init__(self, device_type: str) -> None:
        self.type = device_type
        self._module: Any = torch.get_device_module(device_type)

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.type, self.current())

    def count(self) -> int:
        return int(self._module.device_count())

    def current(self) -> int:
        return int(self._module.current_device())

    def set(self, index: int) -> None:
        self._module.set_device(self.checked(index))

    def properties(self, index: int | None = None) -> DeviceProperties:
        found = self._module.get_device_properties(self.checked(index))
        return DeviceProperties(found.name, found.total_memory, None, {})

    def synchronize(self) -> None:
        self._module.synchronize(self.current())

    def flush(self) -> None:
        pass  # eager devices have no graph to cut

    def seed(self, n: int) -> None:
        random.seed(n)
        np.random.seed(n % 2**32)  # numpy's legacy generator takes 32 bits
        torch.manual_seed(n)  # seeds every device type that is registered with torch, lazily where not initialised

    def rng_state(self) -> dict[str, Any]:
        return {**host_rng_state(), **self._device_rng_state()}

    def set_rng_state(self, state: dict[str, Any]) -> list[str]:
        notes = set_host_rng_state(state)
        return notes + self._set_device_rng_state({k: v for k, v in state.items() if k not in HOST_GENERATORS})

    def counters(self) -> dict[str, int]:
        # torch.compile counts each graph that it compiles; it is not imported here to ask.
        compiler: Any = sys.modules.get("torch._dynamo.utils")
        compiles = 0 if compiler is None else compiler.counters["stats"]["unique_graphs"]
        return {"compiles": int(compiles)}

    def uncounted(self) -> Mapping[str, str]:
        return {"fallbacks": f"operations that torch runs on the host for {self.type} are not counted"}

    def stream(self) -> Any:
        return self._module.Stream()

    def event(self, timing: bool = False) -> Any:
        return self._module.Event(enable_timing=timing)

    def copies(self) -> Copies:
        return Copies(self.move) if self.is_host else StreamCopies(self.move, self._module)

    def _device_rng_state(self) -> dict[str, Any]:
        return {self.type: self._module.get_rng_state(self.current())}

    def _set_device_rng_state(self, state: dict[str, Any]) -> list[str]:
        notes = []
        for name, value in state.items():
            if name == self.type:
                self._module.set_rng_state(value, self.current())
            else:
                notes.append(foreign_generator(name, self.type))
        return notes


HOST_GENERATORS = ("python", "numpy", "torch")


def host_rng_state() -> dict[str, Any]:
    """State of the generators that every backend has, as plain data and CPU tensors."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }


def set_host_rng_state(state: dict[str, Any]) -> list[str]:
    """Restore each host generator; one that is absent or unreadable is named and does not keep the others from it
    (T52).
    """
    notes = []
    for name, restore in (("python", _set_python), ("numpy", _set_numpy), ("torch", _set_torch)):
        if name not in state:
            notes.append(f"the saved random state has no part {name!r}; that generator goes on as it is")
            continue
        try:
            restore(state[name])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            notes.append(f"the saved state of generator {name!r} cannot be used ({error}); it goes on as it is")
    return notes


def foreign_generator(name: str, here: str) -> str:
    return f"the random state of device type {name!r} cannot be carried over to {here!r}; its generator is seeded anew"


def _set_python(part: dict[str, Any]) -> None:
    random.setstate((part["version"], tuple(part["words"].tolist()), part["gauss"]))


def _set_numpy(part: dict[str, Any]) -> None:
    keys = part["keys"].numpy().astype(np.uint32)
    np.random.set_state((part["kind"], keys, part["position"], part["has_gauss"], part["cached"]))


def _set_torch(part: torch.Tensor) -> None:
    torch.set_rng_state(part.to("cpu", torch.uint8))
