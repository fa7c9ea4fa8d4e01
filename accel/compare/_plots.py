"""The plots of one group as inline SVG: throughput with the spread over repeats, loss curves, spread of step times.

Text stays text and takes the page's colour, so that one drawing reads in a light and in a dark page. The figures are
small and their type large, because a phone shows them at its own width. Plots draw on `matplotlib.figure` alone: no
global state.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from accel.compare._cells import number
from accel.compare._groups import Entry, Group

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
        _plot("Throughput", "Median of the repeats as a bar, each repeat as a dot. Images/s, more is better.",
              group, lambda entry: entry.record.results.throughput.value is not None, _throughput),
        _plot("Training loss", "Mean over ranks since the previous point, by optimizer step.",
              group, lambda entry: bool(entry.record.results.loss_curve.points), _loss),
        _plot("Step time", "Each timed step as a dot, p10 to p90 as a band, the median as a line. Less is better.",
              group, lambda entry: bool(entry.record.results.step_times.values), _step_time),
    ]  # fmt: skip


def color(index: int) -> str:
    """The colour of a record by its place in its group."""
    return COLORS[index % len(COLORS)]


def _plot(
    title: str,
    caption: str,
    group: Group,
    has: Callable[[Entry], bool],
    draw: Callable[[Axes, list[tuple[str, Entry]]], None],
) -> Plot:
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
        bars = draw is not _loss
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
