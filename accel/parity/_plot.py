"""The plot of a comparison: by step, the difference of each direction that comes nearest to what was allowed."""

from __future__ import annotations

from pathlib import Path

from accel.errors import ArgumentError, ParityError
from accel.parity._compare import Comparison

KINDS = (".png", ".svg", ".pdf")
_LEAST = 1e-9  # differences below are drawn here: a logarithm has no 0
COLORS = {"forward": "#2f7fd1", "backward": "#e0752d", "update": "#2e9e6b"}


def draw(found: Comparison, path: str | Path) -> None:
    """Draw `found` to a .png, .svg or .pdf file. Raises `ArgumentError`; `ParityError` where it cannot be written."""
    target = Path(path)
    if target.suffix not in KINDS:
        raise ArgumentError(f"--plot {path}: expected a file that ends in {', '.join(KINDS)}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ParityError(f"--plot needs matplotlib ({error}): pip install accel-torch[report]") from error
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for direction, curve in found.curves.items():
        steps = range(1, len(curve.differences) + 1)
        color = COLORS[direction]
        axes.semilogy(steps, [max(value, _LEAST) for value in curve.differences], color=color, marker=".")
        axes.semilogy(steps, [max(value, _LEAST) for value in curve.allowed], color=color, linestyle=":")
        axes.plot([], [], color=color, label=direction)
    axes.plot([], [], color="gray", linestyle=":", label="allowed")
    if found.finding is not None:
        axes.axvline(found.finding.step, color="#d0455b", label=f"parts: {found.finding.layer}")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("largest relative difference")
    axes.set_title(f"{found.a.run['backend']} against {found.b.run['backend']}")
    axes.legend(loc="lower right", fontsize=8)
    try:
        figure.savefig(target, dpi=150)
    except OSError as error:
        raise ParityError(f"--plot {path} cannot be written: {error}") from error
