"""What a run's images cost: the price of its chips an hour, from the user or from the chip table, over its throughput.

A price has a place and a date, and both are shown with it. An emulated run has no cost, as its time is not the chip's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from accel import chips
from accel.errors import ArgumentError
from accel.records import Record

IMAGENET = 1_281_167  # training images of ILSVRC 2012, https://www.image-net.org/challenges/LSVRC/2012/
_FULL_SIZE = 224  # px; an epoch of ImageNet is only told of runs at its usual size


@dataclass(frozen=True)
class Cost:
    """USD for a million images, and for an epoch of ImageNet at this throughput; None with `reason` where unknown.

    `price` is USD a chip and hour and `source` where it is from; `hour` is USD an hour of all chips of the run.
    """

    million: float | None
    epoch: float | None
    price: float | None
    source: str | None
    reason: str | None
    epoch_reason: str | None = None
    hour: float | None = None

    def of(self, seconds: float | None) -> float | None:
        """USD for `seconds` of the run; None where either is unknown."""
        return None if self.hour is None or seconds is None else self.hour * seconds / 3600

    @property
    def words(self) -> str:
        """The price and where it is from."""
        return f"{self.price:g} USD a chip and hour ({self.source})"


def parse_prices(given: Iterable[str]) -> dict[str, float]:
    """`CHIP=USD_AN_HOUR` options as a map; a chip is one of the table or the name in a record.

    Raises `ArgumentError` for another form, a price that is not a number above zero, and a chip given twice.
    """
    found: dict[str, float] = {}
    for text in given:
        name, equals, amount = text.rpartition("=")
        if not equals or not name.strip():
            raise ArgumentError(f"--price is {text!r}; expected CHIP=USD_AN_HOUR, such as H100-SXM5=2.50")
        try:
            value = float(amount)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise ArgumentError(f"--price of {name!r} is {amount!r}; expected USD an hour of one chip, above 0")
        if name in found:
            raise ArgumentError(f"--price names {name!r} twice; give one price a chip")
        found[name] = value
    return found


def check_prices(prices: Mapping[str, float], records: Iterable[Record]) -> None:
    """Raise `ArgumentError` for a price of a chip that no record has."""
    names = {name for record in records for name in _names(record)}
    for name in prices:
        if name.casefold() not in {known.casefold() for known in names}:
            raise ArgumentError(
                f"--price names {name!r}, which no record was run on{chips.suggestion(name)}; "
                f"the records have {', '.join(sorted(names)) or 'no chip with a name'}"
            )


def cost(record: Record, prices: Mapping[str, float]) -> Cost:
    """The cost of `record`'s images at `prices` by chip, else at the chip table's."""
    rate, devices = record.results.throughput.value, record.hardware.devices.value
    if record.origin_of(record.results.throughput) == "emulated":
        return _unknown("the run was emulated, so its time is not the chip's")
    if not devices:
        return _unknown("the number of devices is unknown")
    priced = _price(record, prices)
    if isinstance(priced, str):
        return _unknown(priced)
    price, source = priced
    hour = price * devices / _devices_per_chip(record)
    if not rate:
        why = "the throughput is unknown or zero"
        return Cost(None, None, price, source, why, why, hour)
    million = hour / 3600 / rate * 1e6
    if record.workload.image_size.value != _FULL_SIZE:
        why = f"images are not {_FULL_SIZE} px, as ImageNet's usually are"
        return Cost(million, None, price, source, None, why, hour)
    return Cost(million, million * IMAGENET / 1e6, price, source, None, None, hour)


def _unknown(reason: str) -> Cost:
    return Cost(None, None, None, None, reason, reason)


def _price(record: Record, prices: Mapping[str, float]) -> tuple[float, str] | str:
    names = _names(record)
    given = {name.casefold(): value for name, value in prices.items()}
    for name in names:
        if name.casefold() in given:
            return given[name.casefold()], "--price"
    chip = _chip(record)
    hourly = [one for one in chip.prices if one.unit == "USD/chip-h"] if chip else []
    if not hourly:
        who = f"{names[0]!r}" if names else "the chip"
        return f"no price an hour of {who} is known; give one with --price CHIP=USD_AN_HOUR"
    best = max(hourly, key=lambda one: (one.date or "", -chips.CONFIDENCES.index(one.confidence)))
    when = best.date or f"undated: {best.date_note}"
    return best.value, f"{best.place}, {when}, confidence {best.confidence}: {'; '.join(best.source)}"


def _chip(record: Record) -> chips.Chip | None:
    known = record.efficiency.chip.value if record.efficiency else None
    return chips.table().get(known) if known else chips.recognise(record.hardware.chip.value).chip


def _devices_per_chip(record: Record) -> int:
    chip = _chip(record)
    return chip.devices_per_chip if chip else 1


def _names(record: Record) -> list[str]:
    chip = _chip(record)
    return [name for name in (chip.name if chip else None, record.hardware.chip.value) if name]
