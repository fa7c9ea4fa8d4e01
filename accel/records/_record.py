"""`Record` and its parts: the typed form of what `schema.json` describes, and its conversion to and from plain data.

A figure that is not known has the value None and a reason; an empty series or curve has a reason too. Field names here
and property names in the schema are the same, which a test holds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

SCHEMA = "accel-record/1"
ORIGINS = ("measured", "emulated", "published", "predicted")

CALIBRATION = "calibration"  # in the hardware details of a predicted record: the runs that the model was fitted to
NOT_YET = "the record was made by a version that did not take it"

Number = int | float
Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Figure:
    """A number with its unit; `origin` only where it differs from the record's."""

    value: Number | None
    unit: str
    origin: str | None = None
    reason: str | None = None

    def words(self) -> str:
        """The exact value with its unit, or why there is none."""
        if self.value is None:
            return f"unknown ({self.reason})"
        plural = self.value != 1 or self.unit == "s" or "/" in self.unit
        return f"{self.value:,} {self.unit if plural else _singular(self.unit)}"


@dataclass(frozen=True)
class Label:
    """A name that may be unknown, then with a reason."""

    value: str | None
    reason: str | None = None


@dataclass(frozen=True)
class Series:
    """Numbers of one unit, in the order they were taken."""

    values: tuple[Number, ...]
    unit: str
    origin: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Curve:
    """(step, value) points; a value is None where it was not finite."""

    points: tuple[tuple[int, Number | None], ...]
    unit: str
    origin: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class BackendPart:
    """The accel backend: its name and kind ("eager" or "lazy")."""

    name: str
    kind: str


@dataclass(frozen=True)
class Hardware:
    """What the run was on."""

    chip: Label
    devices: Figure
    world_size: Figure
    hosts: Figure
    details: dict[str, str]


@dataclass(frozen=True)
class Numerics:
    """The policy asked for, and the vendor's switches as read back during the run."""

    policy: str
    in_force: dict[str, Scalar]


@dataclass(frozen=True)
class Workload:
    """What was trained."""

    model: str
    parameters: Figure
    data: str
    delivery: str
    image_size: Figure
    batch_per_device: Figure
    accumulate: Figure
    global_batch: Figure
    optimizer: str
    seed: int | None  # None where nothing was run


@dataclass(frozen=True)
class Protocol:
    """How it was timed."""

    steps: Figure
    repeats: Figure
    warmup_steps: Figure
    clock: str
    loader_workers: Figure
    threads: Figure
    threads_source: str


@dataclass(frozen=True)
class Results:
    """What came out. Times in seconds, throughput in images/s."""

    throughput: Figure
    throughput_per_device: Figure
    throughput_repeats: Series
    step_time: Figure
    step_time_p10: Figure
    step_time_p90: Figure
    step_times: Series
    first_step_time: Figure
    compile_time: Figure
    loss_curve: Curve
    accuracy: Figure
    peak_allocated: Figure
    peak_reserved: Figure
    compiles: Figure = Figure(None, "graphs", reason=NOT_YET)
    fallbacks: Figure = Figure(None, "operations", reason=NOT_YET)
    data_time: Figure = Figure(None, "s", reason=NOT_YET)
    forward_time: Figure = Figure(None, "s", reason=NOT_YET)
    backward_time: Figure = Figure(None, "s", reason=NOT_YET)
    update_time: Figure = Figure(None, "s", reason=NOT_YET)
    reduce_time: Figure = Figure(None, "s", reason=NOT_YET)
    energy: Figure = Figure(None, "J/image", reason=NOT_YET)
    backward_alone_time: Figure = Figure(None, "s", reason=NOT_YET)
    reduce_overlap: Figure = Figure(None, "fraction", reason=NOT_YET)
    data_share: Figure = Figure(None, "fraction", reason=NOT_YET)


@dataclass(frozen=True)
class Goal:
    """What an epoch took, and whether and when the run reached an accuracy; see `accel.bench._goal`.

    `evaluated_at` (s since before the first data access) and `accuracies` have one value an evaluation.
    """

    clock: str
    epoch_images: Figure
    epoch_time: Figure
    epoch_basis: str  # "measured" or "extrapolated"
    target: Figure
    outcome: str  # "reached", "not reached" or "no target"
    time_to_target: Figure
    epochs_to_target: Figure
    evaluated_images: Figure
    evaluated_at: Series
    accuracies: Series


@dataclass(frozen=True)
class InputTrial:
    """Training steps with one way to load data: images/s, and the share of the time spent waiting for it."""

    workers: Figure
    pinned: bool
    throughput: Figure
    data_share: Figure


@dataclass(frozen=True)
class InputAdvice:
    """Ways to load data that were tried on this machine, and which to use; None with a reason in `advice` where none
    could be tried.
    """

    trials: tuple[InputTrial, ...]
    workers: Figure
    pinned: bool | None
    advice: str


@dataclass(frozen=True)
class Disturbance:
    """Signs, from the devices and the hosts themselves, that a run had them not at full clock or not to itself."""

    samples: Figure
    throttled: Figure  # share of the samples
    throttle_causes: tuple[str, ...]
    other_processes: Figure  # most at once on one device
    other_load: Figure  # CPU cores of one host, on average
    cpu_wait: Figure  # share of the time that a thread of the run stood ready and had no core


@dataclass(frozen=True)
class Prediction:
    """What a compiler said of a program that never ran. Sizes in bytes and counts are of one device."""

    topology: str
    program: str
    optimization: str
    fits: bool
    compile_time: Figure
    temporary: Figure
    arguments: Figure
    outputs: Figure
    aliased: Figure
    code: Figure
    flops: Figure
    bytes_accessed: Figure
    needed: Figure
    available: Figure
    missing: Figure
    largest_batch: Figure
    batches_tried: tuple[int, ...]
    message: str | None


@dataclass(frozen=True)
class PlannedStep:
    """Memory of one device for a training step that never ran, in bytes; see `accel.plan.Plan`."""

    parameters: Figure
    gradients: Figure
    optimizer: Figure
    activations: Figure
    workspace: Figure
    peak: Figure
    peak_allocated: Figure
    peak_reserved: Figure
    fits: bool | None
    largest_batch: Figure


@dataclass(frozen=True)
class MemoryPlan:
    """What `accel.plan` said of a step, with and without recomputed activations."""

    allocator: str
    capacity: Figure
    headroom: Figure
    plain: PlannedStep
    checkpointed: PlannedStep
    saved_by_accumulation: Figure


@dataclass(frozen=True)
class Efficiency:
    """Work counted by tracing the step, an image, and the share of the chip's dense peak that it came to."""

    chip: Label  # of accel's chip table
    arithmetic: Label  # what matrix products were computed in, as read back
    macs_forward: Figure
    flops_forward: Figure
    flops_training: Figure
    elements_training: Figure
    bytes_training: Figure
    achieved: Figure  # FLOP/s of one device
    peak: Figure  # FLOP/s of one device, dense: the denominator
    mfu: Figure


@dataclass(frozen=True)
class Record:
    """One run of a benchmark."""

    id: str
    time: str  # UTC, such as "2026-01-31T12:00:00Z"
    command: str
    benchmark: str
    origin: str
    backend: BackendPart
    hardware: Hardware
    versions: dict[str, str]
    numerics: Numerics
    workload: Workload
    protocol: Protocol
    results: Results
    prediction: Prediction | None = None  # only where the origin is "predicted"
    plan: MemoryPlan | None = None  # only where the origin is "predicted"
    efficiency: Efficiency | None = None
    goal: Goal | None = None
    input: InputAdvice | None = None
    disturbance: Disturbance | None = None
    sources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    schema: str = field(default=SCHEMA)

    def origin_of(self, figure: Figure | Series | Curve) -> str:
        """The origin of one figure: its own, else the record's."""
        return figure.origin or self.origin

    def to_plain(self) -> dict[str, Any]:
        """Dicts, lists and scalars, as they stand in the file."""
        plain: dict[str, Any] = _plain(self)
        return {"schema": plain.pop("schema"), **plain}

    @staticmethod
    def from_plain(data: dict[str, Any]) -> Record:
        """The record in `data`, which must have passed `accel.records.check`."""
        record: Record = _typed(Record, data)
        return record


def _singular(unit: str) -> str:
    return unit.removesuffix("es") if unit.endswith(("ches", "sses")) else unit.removesuffix("s")


# absent from the file where None
_OPTIONAL = frozenset({"origin", "reason", "prediction", "plan", "efficiency", "goal", "input", "disturbance"})
_OPTIONAL_LISTS = frozenset({"sources"})  # absent from the file where empty


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        items = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: _plain(item) for name, item in items if not _absent(name, item)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _absent(name: str, item: Any) -> bool:
    return (item is None and name in _OPTIONAL) or (not item and name in _OPTIONAL_LISTS)


_hints = cache(get_type_hints)


def _typed(cls: Any, data: dict[str, Any]) -> Any:
    hints = _hints(cls)
    return cls(**{name: _convert(hints[name], item) for name, item in data.items()})


def _convert(hint: Any, item: Any) -> Any:
    if isinstance(item, dict) and get_origin(hint) is UnionType:  # a part that may be None
        hint = get_args(hint)[0]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _typed(hint, item)
    if get_origin(hint) is tuple:
        return tuple(_convert(get_args(hint)[0], element) for element in item)
    return item
