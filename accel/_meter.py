"""`Meter`: weighted means of named values, summed on the device and read once.

`add` queues a few additions and reads nothing; `read` does one host read and one exchange over the control plane, by
name, so that a rank that saw no batch, or other names, neither hangs nor shifts the others' figures.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from accel.collective import Collective
from accel.device import Device
from accel.errors import ArgumentError


class Meter:
    """Means over everything added on all ranks since the last reset; made by `Session.meter`."""

    def __init__(self, device: Device, collective: Collective, dtype: torch.dtype) -> None:
        self._device = device.torch_device
        self._collective = collective
        self._dtype = dtype
        self._sums: dict[str, torch.Tensor] = {}  # one element each, sum of weight * value
        self._weights: dict[str, torch.Tensor] = {}

    def add(self, *, weight: Any = 1, **values: Any) -> None:
        """Add each value (number or tensor of one element) with `weight` (such as the samples it is the mean of)."""
        if not values:
            raise ArgumentError("Meter.add() got no values; name them, as in add(weight=len(x), loss=loss)")
        weight = self._scalar("weight", weight)
        for name, given in values.items():
            value = self._scalar(name, given)
            if name not in self._sums:
                self._sums[name], self._weights[name] = self._zero(), self._zero()
            self._sums[name] += weight * value
            self._weights[name] += weight

    def read(self, local: bool = False, reset: bool = False) -> dict[str, float]:
        """The mean of each name over all ranks (`local`: of this rank only). A name whose weights sum to 0 is NaN.

        Every rank must call it, unless `local`. An empty dict when nothing was added anywhere.
        """
        names = list(self._sums)
        totals: dict[str, tuple[float, float]] = {}
        if names:
            flat = torch.cat([self._sums[n] for n in names] + [self._weights[n] for n in names]).tolist()
            totals = {name: (flat[i], flat[len(names) + i]) for i, name in enumerate(names)}
        parts = [totals] if local else self._collective.all_gather_object(totals)
        if reset:
            self._sums.clear()
            self._weights.clear()
        order = dict.fromkeys(name for part in parts for name in part)
        means = {}
        for name in order:
            present = [part[name] for part in parts if name in part]
            weight = math.fsum(w for _, w in present)
            means[name] = sum(s for s, _ in present) / weight if weight else math.nan
        return means

    def _zero(self) -> torch.Tensor:
        """A sum's beginning, made so that a lazy device records the first addition like any other (T59).

        It has one dimension because torch_xla 2.9 gives equal 0-dim tensors one buffer, and one buffer fewer is another
        graph.
        """
        return torch.zeros(1, dtype=self._dtype).to(self._device)

    def _scalar(self, name: str, value: Any) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                raise ArgumentError(
                    f"Meter.add({name}=tensor of shape {tuple(value.shape)}): expected one element; take its mean first"
                )
            return value.detach().reshape(()).to(self._device, self._dtype)
        if isinstance(value, (bool, int, float)):
            return torch.tensor(float(value), dtype=self._dtype, device=self._device)
        raise ArgumentError(f"Meter.add({name}={value!r}): expected a number or a tensor of one element")
