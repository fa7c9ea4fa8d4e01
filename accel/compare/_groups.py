"""Which records may be compared: grouping by workload, protocol and origin, ratios inside a group, and what differs.

A group's first record is its baseline. Conditions (versions, numerics, threads and the like) do not part a group,
because they are what hardware and its software bring along; where they differ inside a group they are named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from accel.compare._cost import Cost, check_prices, cost
from accel.compare._fairness import cautions
from accel.compare._parity import Parity, parities
from accel.compare._scaling import Scaling, scalings
from accel.compare._uncertainty import Interval, Unknown, ratio_interval, throughput_interval
from accel.errors import ArgumentError
from accel.published import Run
from accel.records import CALIBRATION, Figure, Record


@dataclass(frozen=True)
class Entry:
    """One record in a report. `tag` ("#1") names it everywhere; `ratio` is its throughput over the baseline's.

    `interval` is of its throughput, `ratio_interval` of the ratio, both 95 %; `cautions` are what makes the two no fair
    match.
    """

    tag: str
    record: Record
    ratio: float | None
    interval: Interval | Unknown
    ratio_interval: Interval | Unknown
    cost: Cost
    cautions: tuple[str, ...] = ()
    is_baseline: bool = False

    @property
    def hardware(self) -> str:
        """The chip and how many, in words."""
        hardware = self.record.hardware
        chip = hardware.chip.value or "unknown chip"
        count = hardware.devices.value
        return chip if count == 1 else f"{chip} x {'unknown count' if count is None else count}"

    @property
    def verdict(self) -> str | None:
        """Whether it differs from its baseline by more than noise; None where the noise is not known."""
        if self.is_baseline or isinstance(self.ratio_interval, Unknown):
            return None
        if self.ratio_interval.holds(1):
            return "no significant difference"
        return "faster" if self.ratio_interval.low > 1 else "slower"


@dataclass(frozen=True)
class Difference:
    """A field that is not the same everywhere: its value by tag of a record or name of a group."""

    field: str
    values: dict[str, str]


@dataclass(frozen=True)
class Group:
    """Records that may stand side by side. `key` holds the fields that they share, in words."""

    name: str
    key: dict[str, str]
    entries: list[Entry]
    conditions: list[Difference]

    @property
    def origin(self) -> str:
        return self.entries[0].record.origin


@dataclass(frozen=True)
class Report:
    """All groups, and the key fields in which they differ: the reason why they are apart."""

    groups: list[Group]
    differences: list[Difference]
    parity: list[Parity]  # of the loss curves, across origins
    scaling: list[Scaling]  # over numbers of devices
    published: tuple[Run, ...] = ()  # laid beside, see `with_published`

    @property
    def entries(self) -> list[Entry]:
        return [entry for group in self.groups for entry in group.entries]


def compare(
    records: Iterable[Record],
    *,
    baseline: str | None = None,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> Report:
    """Group `records`, in the order given; whatever cannot be compared stands in a group of its own.

    `baseline`: the start of the id of the run that comes first, and so is the baseline of its group. `prices`: USD an
    hour by chip, instead of the chip table's. Raises `ArgumentError` for a baseline that is not one run, and for the
    price of a chip that no record has.
    """
    ordered = _ordered(list(records), baseline)
    check_prices(prices, ordered)
    by_key: dict[tuple[str, ...], list[Entry]] = {}
    for index, record in enumerate(ordered, start=1):
        members = by_key.setdefault(tuple(_key(record).values()), [])
        members.append(_entry(f"#{index}", record, members[0].record if members else None, prices))
    groups = [
        Group(chr(ord("A") + i) if i < 26 else f"G{i + 1}", _key(members[0].record), members, _conditions(members))
        for i, members in enumerate(by_key.values())
    ]
    keys = {f"group {group.name}": group.key for group in groups}
    entries = sorted((entry for group in groups for entry in group.entries), key=lambda entry: int(entry.tag[1:]))
    scaling = scalings(entries, lambda entry: _key(entry.record))
    return Report(groups, _differences(keys), parities(entries, _work), scaling)


def _ordered(records: list[Record], baseline: str | None) -> list[Record]:
    if baseline is None:
        return records
    found = [record for record in records if record.id.startswith(baseline)]
    if len(found) != 1 or not baseline:
        runs = ", ".join(record.id for record in found or records)
        raise ArgumentError(
            f"--baseline is {baseline!r}, which is the start of {len(found)} runs' ids; expected that of one of: {runs}"
        )
    return [*found, *(record for record in records if record is not found[0])]


def _entry(tag: str, record: Record, baseline: Record | None, prices: Mapping[str, float]) -> Entry:
    ratio = _ratio(record, baseline or record)
    return Entry(
        tag,
        record,
        ratio,
        throughput_interval(record),
        Unknown("it is the baseline") if baseline is None else ratio_interval(record, baseline, ratio),
        cost(record, prices),
        tuple(cautions(record, baseline)),
        baseline is None,
    )


_FIELDS: dict[str, Callable[[Record], str | Figure]] = {
    "benchmark": lambda record: record.benchmark,
    "origin": lambda record: record.origin,
    "model": lambda record: record.workload.model,
    "data": lambda record: f"{record.workload.data}, {record.workload.delivery}",
    "image size": lambda record: record.workload.image_size,
    "precision": lambda record: record.numerics.policy,
    "batch per device": lambda record: record.workload.batch_per_device,
    "accumulate": lambda record: record.workload.accumulate,
    "world size": lambda record: record.hardware.world_size,
    "devices": lambda record: record.hardware.devices,
    "global batch": lambda record: record.workload.global_batch,
    "optimizer": lambda record: record.workload.optimizer,
    "steps": lambda record: record.protocol.steps,
}


def _key(record: Record) -> dict[str, str]:
    values = {name: read(record) for name, read in _FIELDS.items()}
    key = {name: value if isinstance(value, str) else value.words() for name, value in values.items()}
    calibration = record.hardware.details.get(CALIBRATION)  # code bases differ by more than chips do
    return key if calibration is None else key | {CALIBRATION: calibration}


def _work(entry: Entry) -> tuple[str, ...]:
    """What decides a run's losses: everything that its group shares but the origin, its seed and its schedule."""
    record = entry.record
    shared = [value for name, value in _key(record).items() if name != "origin"]
    return (*shared, str(record.workload.seed), record.protocol.repeats.words())


def _ratio(record: Record, baseline: Record) -> float | None:
    own, base = record.results.throughput, baseline.results.throughput
    if own.value is None or not base.value or record.origin_of(own) != baseline.origin_of(base):
        return None
    return own.value / base.value


def _conditions(entries: list[Entry]) -> list[Difference]:
    return _differences({entry.tag: _condition(entry.record) for entry in entries})


def _condition(record: Record) -> dict[str, str]:
    protocol = record.protocol
    return {
        "seed": str(record.workload.seed),
        "repeats": protocol.repeats.words(),
        "warm-up": protocol.warmup_steps.words(),
        "threads": f"{protocol.threads.words()} ({protocol.threads_source})",
        "clock": protocol.clock,
        "loader workers": protocol.loader_workers.words(),
        "hosts": record.hardware.hosts.words(),
        **_compilation(record),
        **{f"numerics: {name}": str(value) for name, value in record.numerics.in_force.items()},
        **{f"version: {name}": value for name, value in record.versions.items()},
    }


def _compilation(record: Record) -> dict[str, str]:
    found = record.prediction
    return {} if found is None else {"compiled for": found.topology, "optimization": found.optimization}


def _differences(named: dict[str, dict[str, str]]) -> list[Difference]:
    fields = dict.fromkeys(field for values in named.values() for field in values)
    rows = [
        Difference(field, {name: values.get(field, "absent") for name, values in named.items()}) for field in fields
    ]
    return [row for row in rows if len(set(row.values.values())) > 1]
