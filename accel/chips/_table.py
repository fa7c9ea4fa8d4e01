"""`Chip` and its figures, read from `chips.json`; `get` finds one by name and suggests a near miss."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from accel.errors import ArgumentError

CONFIDENCES = ("high", "medium", "low")
_FACTORS = {"TFLOP/s": 1e12, "TOP/s": 1e12, "GB/s": 1e9, "TB/s": 1e12, "GB": 1e9, "GiB": 2**30, "W": 1, "year": 1}


@dataclass(frozen=True)
class Value:
    """A figure of a chip as its sources print it, in `unit`; `conflict` says which other figures are in circulation."""

    value: float
    unit: str
    source: tuple[str, ...]
    confidence: str  # "high", "medium" or "low"
    conditions: str | None = None
    conflict: str | None = None

    @property
    def plain(self) -> float:
        """The value in FLOP/s, operations/s, bytes/s, bytes, W or as a year."""
        return self.value * _FACTORS[self.unit]


@dataclass(frozen=True)
class Price:
    """What a chip costs: USD an hour ("USD/chip-h") or to buy ("USD/chip"), where and when (ISO month, where known)."""

    value: float
    unit: str
    place: str
    date: str | None
    date_note: str | None  # why there is no date
    source: tuple[str, ...]
    confidence: str
    conditions: str | None = None
    conflict: str | None = None


@dataclass(frozen=True)
class Chip:
    """One chip. None where no source gives a figure; `notes` may say why.

    `dense` and `sparse` hold the peak of the matrix units by number format ("fp32", "tf32", "bf16", "fp16", "fp8",
    "int8", "fp64", "fp64 tensor"); fp32 is the ordinary units' where matrix units have no fp32. `alternatives` are
    figures of other sources that were not chosen, and `choice` says why. `link` is the bandwidth of all links to other
    chips, both directions together. `devices_per_chip`: 2 where the runtime lists each core as a device of its own.
    """

    name: str
    vendor: str
    dense: MappingProxyType[str, Value]
    sparse: MappingProxyType[str, Value]
    memory: Value | None
    bandwidth: Value | None
    interconnect: str | None
    link: Value | None
    power: Value | None  # the limit, W
    year: Value | None
    devices_per_chip: int
    prices: tuple[Price, ...]
    alternatives: MappingProxyType[str, tuple[Value, ...]]
    choice: str | None
    other: MappingProxyType[str, Value]
    notes: tuple[str, ...]

    def peak(self, dtype: str) -> float | None:
        """Dense peak of one device in FLOP/s for `dtype`, such as "bf16"; None where no source gives it."""
        value = self.dense.get(dtype)
        return None if value is None else value.plain / self.devices_per_chip


@cache
def table() -> MappingProxyType[str, Chip]:
    """Every chip of the table, by name."""
    plain = json.loads(files("accel.chips").joinpath("chips.json").read_text(encoding="utf-8"))
    return MappingProxyType({name: _chip(name, data) for name, data in plain["chips"].items()})


def get(name: str) -> Chip:
    """The chip called `name`, in any case. Raises `ArgumentError` with the nearest names for one that is not there."""
    folded = {known.casefold(): chip for known, chip in table().items()}
    chip = folded.get(name.casefold())
    if chip is not None:
        return chip
    raise ArgumentError(f"chip {name!r} is not in the table{suggestion(name)}; `accel chips` lists all")


def suggestion(name: str) -> str:
    """The names of the table nearest to `name`, as the end of a sentence."""
    folded = {_fold(known): known for known in table()}
    wanted = _fold(name)
    starts = [known for fold, known in folded.items() if wanted and fold.startswith(wanted)]
    near = starts or [folded[fold] for fold in difflib.get_close_matches(wanted, folded, n=3, cutoff=0.6)]
    return f"; did you mean {' or '.join(near)}" if near else ""


def _fold(name: str) -> str:
    return (
        "".join(letter for letter in name.casefold() if letter.isalnum()).removeprefix("nvidia").removeprefix("huawei")
    )


def _chip(name: str, data: dict[str, Any]) -> Chip:
    known = dict(data)
    for field in ("dense", "sparse", "other"):
        known[field] = MappingProxyType({key: _value(item) for key, item in data[field].items()})
    for field in ("memory", "bandwidth", "link", "power", "year"):
        known[field] = None if data[field] is None else _value(data[field])
    choices = {key: tuple(_value(item) for item in items) for key, items in data["alternatives"].items()}
    known["alternatives"] = MappingProxyType(choices)
    known["prices"] = tuple(_price(item) for item in data["prices"])
    known["notes"] = tuple(data["notes"])
    return Chip(name=name, **known)


def _value(data: dict[str, Any]) -> Value:
    return Value(**{**data, "source": tuple(data["source"])})


def _price(data: dict[str, Any]) -> Price:
    return Price(**{"date_note": None, **data, "source": tuple(data["source"])})
