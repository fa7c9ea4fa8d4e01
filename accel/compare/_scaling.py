"""Scaling: runs of the same work a device on 1, 2, 4 ... devices, and the share of the ideal throughput they reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.compare._groups import Entry

GROWS = frozenset({"world size", "devices", "global batch", "optimizer"})  # fields that grow with the devices


@dataclass(frozen=True)
class Scaling:
    """`entry` against `baseline`, the run on the fewest devices. `efficiency` 1 is as much a device as there."""

    entry: Entry
    baseline: Entry
    devices: int
    times: float  # the throughput over the baseline's
    efficiency: float

    @property
    def words(self) -> dict[str, str]:
        """One row by column title."""
        return {
            "run": f"{self.entry.tag} {self.entry.hardware} ({self.entry.record.backend.name}, {self.origin})",
            "against": self.baseline.tag,
            "devices": f"{self.devices:,}",
            "throughput": f"{self.times:.2f}x",
            "efficiency": f"{self.efficiency:.1%}",
        }

    @property
    def origin(self) -> str:
        return self.entry.record.origin_of(self.entry.record.results.throughput)


def scalings(entries: Sequence[Entry], key: Callable[[Entry], dict[str, str]]) -> list[Scaling]:
    """Rows by family and number of devices, families of one number left out.

    A family shares every field of `key` but those that grow with the devices, the kind of device and its software.
    """
    families: dict[tuple[str, ...], list[tuple[int, Entry]]] = {}
    for entry in entries:
        devices, rate = entry.record.hardware.devices.value, entry.record.results.throughput.value
        if isinstance(devices, int) and devices and rate:
            fields = [value for name, value in key(entry).items() if name not in GROWS]
            record = entry.record
            versions = [f"{name} {version}" for name, version in sorted(record.versions.items())]
            family = (*fields, record.backend.name, str(record.hardware.chip.value), *versions)
            families.setdefault(family, []).append((devices, entry))
    rows = []
    for members in families.values():
        ordered = sorted(members, key=lambda member: member[0])
        least, baseline = ordered[0]
        if ordered[-1][0] == least:
            continue
        rows += [_scaling(devices, entry, least, baseline) for devices, entry in ordered]
    return rows


def _scaling(devices: int, entry: Entry, least: int, baseline: Entry) -> Scaling:
    own, base = entry.record.results.throughput.value, baseline.record.results.throughput.value
    assert own
    assert base
    return Scaling(entry, baseline, devices, own / base, own / base / (devices / least))
