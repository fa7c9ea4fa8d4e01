"""Published training throughput of others, each run with its conditions, source and confidence, from `runs.json`.

Nothing here was measured by accel, and nothing here is ever put in a group with records: `accel compare
--with-published` lays it beside, and `accel.predict` is calibrated on the runs that name a set. Imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from accel.errors import ArgumentError


@dataclass(frozen=True)
class Run:
    """One published run. `throughput` is in images/s over all `devices`.

    `chip` is the name in accel's chip table, or None where the source does not say which chip it was; `printed_chip`
    and `printed_precision` are the source's own words. `batch_per_device` is None where the source does not give it.
    `evaluation_included`: the time holds evaluation too, so that training alone was faster. `set` names the calibration
    set of `accel.predict` that the run belongs to.
    """

    model: str
    chip: str | None
    printed_chip: str
    devices: int
    throughput: float
    precision: str
    printed_precision: str
    batch_per_device: int | None
    software: str
    source: str
    confidence: str
    notes: tuple[str, ...]
    evaluation_included: bool
    set: str | None

    @property
    def per_device(self) -> float:
        """Images/s of one device."""
        return self.throughput / self.devices


@cache
def runs(model: str = "resnet50") -> tuple[Run, ...]:
    """The published runs of `model`, in the order of the file. Raises `ArgumentError` where there is none."""
    plain = json.loads(files("accel.published").joinpath("runs.json").read_text(encoding="utf-8"))["runs"]
    everything = [Run(**{**item, "notes": tuple(item["notes"])}) for item in plain]
    found = tuple(run for run in everything if run.model == model)
    if not found:
        known = ", ".join(sorted({run.model for run in everything}))
        raise ArgumentError(f"model is {model!r}; there are published runs of {known} only")
    return found
