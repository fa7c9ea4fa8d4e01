"""How a figure reads: value, unit and origin in words, the same in the terminal, Markdown, CSV and HTML."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from accel.compare._groups import Entry
from accel.compare._uncertainty import Unknown, sampled
from accel.records import Figure, Goal, Record

ORIGIN_SHORT = {"measured": "meas", "emulated": "emul", "published": "publ", "predicted": "pred"}
ORIGIN_MEANING = {
    "measured": "measured on this hardware",
    "emulated": "from an emulator or a CPU client; says nothing of a chip's speed",
    "published": "published by others, not measured by accel",
    "predicted": "predicted, by a model or by a compiler; nothing ran",
}


BASELINE, PRICE = "baseline: ", "price: "  # before a field of the baseline's record, and before what no record holds
_RATE = "results.throughput"
EXTRAPOLATED = " extrapolated"  # behind a figure that no run has shown: so many images at the throughput


@dataclass(frozen=True)
class Cell:
    """One figure for a reader: `text` with its unit, `origin`, and `why` where there is no value.

    `fields` are the figures of the record that it is made of, such as "results.throughput"; those of the baseline's
    record begin with "baseline: ", and a price with "price: ", its source behind it.
    """

    text: str
    origin: str | None = None
    why: str | None = None
    fields: tuple[str, ...] = ()

    @property
    def hint(self) -> str | None:
        """Why there is no value, or what it is made of."""
        return self.why or (f"from {', '.join(self.fields)}" if self.fields else None)


def columns(entry: Entry, baseline: Entry) -> dict[str, Cell]:
    """The figures of one record by column title, in order."""
    record = entry.record
    compiled = {} if baseline.record.prediction is None else _compiled(record)
    return {
        "throughput": cell(record, "results.throughput"),
        "95 % interval": _interval(entry),
        "repeats": _repeats(record),
        "per device": cell(record, "results.throughput_per_device"),
        f"vs {baseline.tag}": _ratio(entry),
        "more than noise": _verdict(entry, baseline.record),
        "MFU": _utilisation(record),
        "a million images": _cost(entry, entry.cost.million, entry.cost.reason, _RATE),
        "an ImageNet epoch": _cost(entry, entry.cost.epoch, entry.cost.epoch_reason, _RATE, EXTRAPOLATED),
        "epoch": _epoch(record),
        "cost of an epoch": _epoch_cost(entry),
        "time to target": _time_to_target(record),
        "cost to target": _target_cost(entry),
        "step time": cell(record, "results.step_time"),
        "p10 to p90": _spread(record),
        "phases": _phases(record),
        "reduction": cell(record, "results.reduce_time"),
        "reduction hidden": cell(record, "results.reduce_overlap"),
        "waiting for data": cell(record, "results.data_share"),
        "energy": cell(record, "results.energy"),
        "loss": _loss(record),
        "accuracy": cell(record, "results.accuracy"),
        "peak allocated": cell(record, "results.peak_allocated"),
        "peak reserved": cell(record, "results.peak_reserved"),
        "compile": cell(record, "results.compile_time"),
        "compiled": cell(record, "results.compiles"),
        "on the host": cell(record, "results.fallbacks"),
        **compiled,
    }


def _compiled(record: Record) -> dict[str, Cell]:
    """What a compiler said of a program that never ran; for groups of such records."""
    if record.prediction is None:
        return dict.fromkeys(("temporary", "work a step", "moved a step", "missing memory"), Cell("-"))
    return {
        "temporary": cell(record, "prediction.temporary"),
        "work a step": cell(record, "prediction.flops"),
        "moved a step": cell(record, "prediction.bytes_accessed"),
        "missing memory": cell(record, "prediction.missing"),
    }


def cell(record: Record, field: str) -> Cell:
    """The figure at `field` of `record`, such as "results.throughput", as a reader sees it."""
    figure = attrgetter(field)(record)
    if figure.value is None:
        return Cell("-", why=figure.reason)
    return Cell(show(figure), record.origin_of(figure), fields=(field,))


def show(figure: Figure) -> str:
    """The value of a figure rounded to what can be read, in the unit that suits its size; "-" where there is none."""
    value, unit = figure.value, figure.unit
    if value is None:
        return "-"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
    if unit == "bytes":
        return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
    if unit == "FLOP":
        return f"{value / 1e12:.2f} TFLOP" if value >= 1e11 else f"{value / 1e9:.3g} GFLOP"
    if unit == "fraction":
        return f"{value * 100:.2f} %"
    return f"{number(value)} {unit}"


def number(value: float) -> str:
    """At least three significant digits, no exponent for what a person can read."""
    if isinstance(value, int):
        return f"{value:,}"
    if value and not 1e-3 <= abs(value) < 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _utilisation(record: Record) -> Cell:
    """Model FLOPs utilisation with its denominator."""
    used = record.efficiency
    if used is None:
        return Cell("-", why="the work of the step was not counted")
    if used.mfu.value is None or used.peak.value is None:
        return Cell("-", why=used.mfu.reason)
    peak = f"{used.peak.value / 1e12:,.4g} TFLOP/s"
    text = f"{used.mfu.value:.1%} of {peak} dense {used.arithmetic.value}"
    return Cell(text, record.origin_of(used.mfu), fields=("efficiency.mfu", "efficiency.peak"))


def _repeats(record: Record) -> Cell:
    series = record.results.throughput_repeats
    origin = record.origin_of(series)
    if not series.values:
        return Cell("-", why=series.reason)
    text = f"{number(min(series.values))} to {number(max(series.values))}"
    return Cell(text, origin, fields=("results.throughput_repeats",))


def _spread(record: Record) -> Cell:
    low, high = record.results.step_time_p10, record.results.step_time_p90
    if low.value is None or high.value is None:
        return Cell("-", why=low.reason or high.reason)
    fields = ("results.step_time_p10", "results.step_time_p90")
    return Cell(f"{show(low)} to {show(high)}", record.origin_of(low), fields=fields)


PHASES = ("data", "forward", "backward", "update")


def phase_times(record: Record) -> dict[str, float] | None:
    """Seconds of a step by phase; None where they were not measured."""
    times = {name: getattr(record.results, f"{name}_time").value for name in PHASES}
    return None if None in times.values() else times


def _phases(record: Record) -> Cell:
    times = phase_times(record)
    whole = sum(times.values()) if times else 0
    if not times or not whole:
        return Cell("-", why=record.results.data_time.reason)
    shares = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in times.items())
    return Cell(
        shares, record.origin_of(record.results.data_time), fields=tuple(f"results.{name}_time" for name in PHASES)
    )


def _ratio(entry: Entry) -> Cell:
    if entry.ratio is None:
        return Cell("-", why="one of the two throughputs is unknown, zero or of another origin")
    return Cell(f"{entry.ratio:.2f}x", _origin(entry), fields=(_RATE, f"{BASELINE}{_RATE}"))


def _interval(entry: Entry) -> Cell:
    if isinstance(entry.interval, Unknown):
        return Cell("-", why=entry.interval.reason)
    low, high = entry.interval
    return Cell(f"{number(low)} to {number(high)}", _origin(entry), fields=(_RATE, *sampled(entry.record)))


def _verdict(entry: Entry, baseline: Record) -> Cell:
    if isinstance(entry.ratio_interval, Unknown):
        return Cell("-", why=None if entry.is_baseline else entry.ratio_interval.reason)
    low, high = entry.ratio_interval
    fields = [_RATE, *sampled(entry.record)]
    fields += [f"{BASELINE}{field}" for field in (_RATE, *sampled(baseline))]
    return Cell(f"{entry.verdict} ({low:.3g}x to {high:.3g}x)", _origin(entry), fields=tuple(fields))


def _cost(entry: Entry, value: float | None, reason: str | None, time: str, mark: str = "") -> Cell:
    """USD for the time that the field `time` gives, at the price of all devices."""
    if value is None:
        return Cell("-", why=reason)
    fields = (time, "hardware.devices", f"{PRICE}{entry.cost.words}")
    return Cell(f"{number(value)} USD{mark}", _origin(entry), fields=fields)


def _origin(entry: Entry) -> str:
    return entry.record.origin_of(entry.record.results.throughput)


NO_GOAL = "the run had no epochs"


def _epoch(record: Record) -> Cell:
    """What an epoch of the run's own data took, or would take."""
    goal = record.goal
    if goal is None:
        return Cell("-", why=NO_GOAL)
    text, origin = f"{long(goal.epoch_time)}{_mark(goal)}", record.origin_of(goal.epoch_time)
    return Cell(text, origin, fields=("goal.epoch_time",))


def _epoch_cost(entry: Entry) -> Cell:
    goal = entry.record.goal
    if goal is None:
        return Cell("-", why=NO_GOAL)
    reason = goal.epoch_time.reason if entry.cost.hour else entry.cost.reason
    return _cost(entry, entry.cost.of(goal.epoch_time.value), reason, "goal.epoch_time", _mark(goal))


def _mark(goal: Goal) -> str:
    return EXTRAPOLATED if goal.epoch_basis == "extrapolated" else ""


def _time_to_target(record: Record) -> Cell:
    """Seconds and epochs to the target; a target that was not reached says so in the cell itself."""
    goal = record.goal
    if goal is None or goal.outcome == "no target":
        return Cell("-", why=NO_GOAL if goal is None else goal.target.reason)
    target, origin = show(goal.target), record.origin_of(goal.time_to_target)
    if goal.outcome == "not reached":
        best = f", best {show(Figure(max(goal.accuracies.values), 'fraction'))}" if goal.accuracies.values else ""
        fields = ("goal.target", "goal.accuracies")
        return Cell(f"{target} not reached{best}", origin, goal.time_to_target.reason, fields)
    text = f"{long(goal.time_to_target)} to {target}, {goal.epochs_to_target.words()}"
    return Cell(text, origin, fields=("goal.time_to_target", "goal.target", "goal.epochs_to_target"))


def _target_cost(entry: Entry) -> Cell:
    goal = entry.record.goal
    if goal is None or goal.time_to_target.value is None:
        return Cell("-", why=NO_GOAL if goal is None else goal.time_to_target.reason)
    return _cost(entry, entry.cost.of(goal.time_to_target.value), entry.cost.reason, "goal.time_to_target")


def long(figure: Figure) -> str:
    """Seconds as a person reads them: in minutes from 120 s on, in hours from 120 minutes on."""
    seconds = figure.value
    if seconds is None or seconds < 120:
        return show(figure)
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _loss(record: Record) -> Cell:
    curve = record.results.loss_curve
    if not curve.points:
        return Cell("-", why=curve.reason)
    step, value = curve.points[-1]
    text = "not finite" if value is None else number(value)
    return Cell(f"{text} at step {step}", record.origin_of(curve), fields=("results.loss_curve",))
