"""The plots of one group as inline SVG: throughput with the spread over repeats, loss curves, spread of step times.

Text stays text and takes the page's colour, so that one drawing reads in a light and in a dark page. The figures are
small and their type large, because a phone shows them at its own width. Plots draw on `matplotlib.figure` alone: no
global state.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from accel import chips
from accel.compare._cells import PHASES, number, phase_times
from accel.compare._groups import Entry, Group
from accel.compare._scaling import Scaling
from accel.compare._uncertainty import SAMPLED, Unknown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#2f7fd1", "#e0752d", "#2e9e6b", "#b0509f", "#b8860b", "#d0455b", "#6a67d8", "#2fa3b5")
_INK = "#0a0b0c"  # stands for the page's text colour until the SVG is finished
_WIDTH = 4.4  # inches; at 72 points an inch about the width of a phone's screen
_FAR = 4  # medians further apart than this share a logarithmic axis, where equal spreads look equal
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "accel",
    "text.parse_math": False,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class Plot(NamedTuple):
    """A drawing: title, what it shows in words, and the SVG element, None where no record has the figures."""

    title: str
    caption: str
    svg: str | None


def plots(group: Group) -> list[Plot]:
    """The plots of `group`; a record without the figures is named in the caption."""
    return [
        _plot("Throughput", "Median of the repeats as a bar, each repeat as a dot, the 95 % interval as a line. "
              "Images/s, more is better.", ("results.throughput", "results.throughput_repeats", *SAMPLED),
              group, lambda entry: entry.record.results.throughput.value is not None, _throughput),
        _plot("Training loss", "Mean over ranks since the previous point, by optimizer step.", ("results.loss_curve",),
              group, lambda entry: bool(entry.record.results.loss_curve.points), _loss),
        _plot("Step time", "Each timed step as a dot, p10 to p90 as a band, the median as a line. Less is better.",
              ("results.step_times", "results.step_time", "results.step_time_p10", "results.step_time_p90"),
              group, lambda entry: bool(entry.record.results.step_times.values), _step_time),
        *_optional(group),
    ]  # fmt: skip


def _optional(group: Group) -> list[Plot]:
    """Plots that are left out where no record of the group has the figures."""
    found = [
        _plot("Phases of a step", "Measured in warm-up, each phase ended by a synchronized device, so without overlap: "
              "data, forward, backward with the reduction it starts, update (darker to lighter).",
              tuple(f"results.{name}_time" for name in PHASES),
              group, lambda entry: phase_times(entry.record) is not None, _phases),
        _plot("Peak memory", "Peak of the bytes in live tensors on one device. Less is better.",
              ("results.peak_allocated",),
              group, lambda entry: bool(entry.record.results.peak_allocated.value), _memory),
        _plot("Cost", "USD for a million images, at the price under \"how it was run\". Less is better.",
              ("results.throughput", "hardware.devices"),
              group, lambda entry: entry.cost.million is not None, _cost),
        _plot("Roofline", "Work done a second against work a byte of the traced step, below what the chip's memory and "
              "units allow (lines), which are the chip table's.",
              ("efficiency.achieved", "efficiency.flops_training", "efficiency.bytes_training", "efficiency.peak"),
              group, lambda entry: _roof(entry) is not None, _roofline),
    ]  # fmt: skip
    return [plot for plot in found if plot.svg is not None]


def scaling(rows: Sequence[Scaling]) -> Plot:
    """Efficiency over the number of devices, one line for each baseline."""
    caption = "Throughput a device, as a share of that on the fewest devices."
    if not rows:
        return Plot("Scaling", caption, None)
    families: dict[str, list[Scaling]] = {}
    for row in rows:
        families.setdefault(row.baseline.tag, []).append(row)
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(_WIDTH, 2.9), layout="constrained")
        axes = canvas.add_subplot()
        for index, members in enumerate(families.values()):
            devices, shares = [m.devices for m in members], [m.efficiency * 100 for m in members]
            name = members[0].baseline.record.hardware.chip.value or "unknown chip"
            axes.plot(devices, shares, "o-", color=color(index), label=f"{name} ({members[0].origin})")
        axes.axhline(100, color=_INK, linewidth=0.8, alpha=0.5)
        axes.set_ylim(bottom=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(int(value))))
        axes.set_xlabel("devices")
        axes.set_ylabel("% of ideal")
        axes.legend(frameon=False, fontsize=9.5)
        return Plot("Scaling", caption, _svg(canvas, f"Scaling: {caption}"))


def color(index: int) -> str:
    """The colour of a record by its place in its group."""
    return COLORS[index % len(COLORS)]


def _plot(
    title: str,
    caption: str,
    fields: tuple[str, ...],
    group: Group,
    has: Callable[[Entry], bool],
    draw: Callable[[Axes, list[tuple[str, Entry]]], None],
) -> Plot:
    caption += f" From {', '.join(fields)}."
    drawn = [(color(index), entry) for index, entry in enumerate(group.entries) if has(entry)]
    absent = [entry.tag for entry in group.entries if not has(entry)]
    if absent:
        caption += f" Not recorded: {', '.join(absent)}."
    origins = dict.fromkeys(entry.record.origin for _, entry in drawn)
    caption += f" Origin: {', '.join(origins)}." if origins else ""
    if not drawn:
        return Plot(title, caption, None)
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the browser has fonts that matplotlib lacks
        bars = draw not in (_loss, _roofline)
        height = 0.9 + 0.62 * len(drawn) if bars else 2.9
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        draw(canvas.add_subplot(), drawn)
        return Plot(title, caption, _svg(canvas, f"{title}: {caption}"))


def _throughput(axes: Axes, drawn: list[tuple[str, Entry]]) -> None:
    for row, (shade, entry) in enumerate(drawn):
        results = entry.record.results
        value = results.throughput.value or 0
        axes.barh(row, value, height=0.42, color=shade, alpha=0.75)
        repeats = results.throughput_repeats.values
        if not isinstance(entry.interval, Unknown):
            axes.plot(entry.interval, [row, row], "-", color=_INK, linewidth=1.6)
        axes.plot(repeats, [row] * len(repeats), "o", markersize=4.5, color=_INK, alpha=0.6, markeredgewidth=0)
        spread = f" ({number(min(repeats))} to {number(max(repeats))})" if repeats else ""
        axes.text(0, row - 0.3, f"{_name(entry)}: {number(value)}{spread}", va="bottom", fontsize=9.5)
    _rows(axes, len(drawn))
    axes.set_xlim(left=0)
    axes.set_xlabel("images/s")


def _step_time(axes: Axes, drawn: list[tuple[str, Entry]]) -> None:
    for row, (shade, entry) in enumerate(drawn):
        results = entry.record.results
        times = [seconds * 1e3 for seconds in results.step_times.values]
        low, median, high = (f.value for f in (results.step_time_p10, results.step_time, results.step_time_p90))
        if low is not None and high is not None:
            axes.barh(row, (high - low) * 1e3, left=low * 1e3, height=0.42, color=shade, alpha=0.35)
        heights = [
            row + 0.16 * ((i * 0.618034) % 1 - 0.5) * 2 for i in range(len(times))
        ]  # spread evenly, no randomness
        axes.plot(times, heights, "o", markersize=3, color=shade, alpha=0.7, markeredgewidth=0)
        if median is not None:
            axes.plot([median * 1e3] * 2, [row - 0.21, row + 0.21], color=_INK, linewidth=2)
        label = "" if median is None else f": median {number(median * 1e3)}"
        axes.annotate(
            f"{_name(entry)}{label}",
            (0, row - 0.3),
            xycoords=("axes fraction", "data"),
            va="bottom",
            fontsize=9.5,
        )
    _rows(axes, len(drawn))
    axes.margins(x=0.05)
    medians = [entry.record.results.step_time.value or 0 for _, entry in drawn]
    if max(medians) > _FAR * min(medians) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ms a step")


def _loss(axes: Axes, drawn: list[tuple[str, Entry]]) -> None:
    for shade, entry in drawn:
        points = entry.record.results.loss_curve.points
        heights = [float("nan") if value is None else value for _, value in points]
        marker = "o" if len(points) < 40 else ""
        label = _name(entry)
        axes.plot([step for step, _ in points], heights, marker=marker, markersize=3, color=shade, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"loss ({drawn[0][1].record.results.loss_curve.unit})")
    axes.grid(alpha=0.15, color=_INK)
    axes.legend(frameon=False, fontsize=9.5)


def _phases(axes: Axes, drawn: list[tuple[str, Entry]]) -> None:
    for row, (shade, entry) in enumerate(drawn):
        left = 0.0
        times = phase_times(entry.record) or {}
        for alpha, seconds in zip((1.0, 0.75, 0.5, 0.25), times.values(), strict=False):
            axes.barh(row, seconds * 1e3, left=left, height=0.42, color=shade, alpha=alpha)
            left += seconds * 1e3
        words = " ".join(f"{seconds / sum(times.values()):.0%}" for seconds in times.values())
        axes.text(0, row - 0.3, f"{_name(entry)}: {words}", va="bottom", fontsize=9.5)
    _rows(axes, len(drawn))
    axes.set_xlim(left=0)
    axes.set_xlabel("ms a step")


def _memory(axes: Axes, drawn: list[tuple[str, Entry]]) -> None:
    values = [(entry.record.results.peak_allocated.value or 0) / 2**30 for _, entry in drawn]
    _bars(axes, drawn, values, [f"{value:.2f} GiB" for value in values], "GiB")


def _cost(axes: Axes, drawn: list[tuple[str, Entry]]) -> None:
    values = [entry.cost.million or 0 for _, entry in drawn]
    _bars(axes, drawn, values, [f"{number(value)} USD" for value in values], "USD a million images")


def _bars(axes: Axes, drawn: list[tuple[str, Entry]], values: list[float], words: list[str], unit: str) -> None:
    for row, ((shade, entry), value, text) in enumerate(zip(drawn, values, words, strict=True)):
        axes.barh(row, value, height=0.42, color=shade, alpha=0.75)
        axes.text(0, row - 0.3, f"{_name(entry)}: {text}", va="bottom", fontsize=9.5)
    _rows(axes, len(drawn))
    axes.set_xlim(left=0)
    axes.set_xlabel(unit)


class _Roof(NamedTuple):
    intensity: float  # FLOP a byte
    achieved: float  # FLOP/s
    peak: float
    bandwidth: float  # bytes/s


def _roof(entry: Entry) -> _Roof | None:
    """The point of a record and its chip's roof, all of one device; None where the chip or the work is unknown."""
    used = entry.record.efficiency
    chip = chips.table().get(used.chip.value or "") if used else None
    if used is None or chip is None or chip.bandwidth is None or entry.record.origin != "measured":
        return None
    work, moved = used.flops_training.value, used.bytes_training.value
    if not work or not moved or not used.achieved.value or not used.peak.value:
        return None
    bandwidth = chip.bandwidth.plain / chip.devices_per_chip
    return _Roof(work / moved, used.achieved.value, used.peak.value, bandwidth)


def _roofline(axes: Axes, drawn: list[tuple[str, Entry]]) -> None:
    found = [(shade, entry, roof) for shade, entry in drawn if (roof := _roof(entry)) is not None]
    ridge = max(roof.peak / roof.bandwidth for _, _, roof in found)
    low, high = min(roof.intensity for _, _, roof in found) / 8, ridge * 8
    for shade, entry, roof in found:
        knee = roof.peak / roof.bandwidth
        xs = (low, knee, high)
        axes.plot(xs, [min(x * roof.bandwidth, roof.peak) / 1e12 for x in xs], color=shade, linewidth=1.2)
        axes.plot([roof.intensity], [roof.achieved / 1e12], "o", color=shade, label=_name(entry))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP a byte")
    axes.set_ylabel("TFLOP/s a device")
    axes.grid(alpha=0.15, color=_INK)
    axes.legend(frameon=False, fontsize=9.5)


def _rows(axes: Axes, count: int) -> None:
    axes.set_ylim(count - 0.6, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.grid(axis="x", alpha=0.15, color=_INK)
    axes.set_axisbelow(True)


def _name(entry: Entry, limit: int = 24) -> str:
    text = f"{entry.tag} {entry.hardware}"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _svg(canvas: Canvas, label: str) -> str:
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<path d=\"[^\"]*\" style=\"fill: #ffffff\"/>", "", svg)  # the white background
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px system-ui, sans-serif", svg)
    attributes = f'role="img" aria-label="{label.replace("&", "and").replace(chr(34), "")}"'
    return svg.replace("<svg", f"<svg {attributes}", 1)
