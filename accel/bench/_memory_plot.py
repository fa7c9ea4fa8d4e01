"""A plot of memory over one training step: what each kind of tensor takes, stacked, as a picture file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from accel.errors import ArgumentError
from accel.footprint import KINDS, Course
from accel.plan import Allocator

COLORS = ("#2f7fd1", "#e0752d", "#b8860b", "#2e9e6b", "#b0509f")  # in the order of KINDS
FORMATS = (".png", ".svg", ".pdf")
GIB = 2**30


def check(path: str | Path) -> Path:
    """`path` if a plot can be written there; raises `ArgumentError` otherwise, before anything runs."""
    target = Path(path)
    if target.suffix not in FORMATS:
        raise ArgumentError(f"--memory-plot {str(path)!r}: expected a file that ends in {', '.join(FORMATS)}")
    if not target.resolve().parent.is_dir():
        raise ArgumentError(f"--memory-plot {str(path)!r}: its folder does not exist; make it first")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ArgumentError("--memory-plot needs matplotlib: pip install 'accel-torch[report]'") from error
    assert mpl.__version__
    return target


def draw(course: Course, allocator: Allocator, path: Path, title: str, lines: dict[str, int]) -> None:
    """Draw `course` into `path`. lines: levels in bytes to mark, by what they are."""
    from matplotlib.figure import Figure as Canvas

    curves = course.curves(allocator.taken)
    events = np.arange(len(course.numbers) + 1)
    canvas = Canvas(figsize=(9, 5), layout="constrained")
    axes = canvas.subplots()
    stacked = [curves[kind] / GIB for kind in KINDS]
    axes.stackplot(events, *stacked, labels=KINDS, colors=COLORS, step="post", linewidth=0)
    for style, (label, level) in zip(("--", ":", "-."), lines.items(), strict=False):
        axes.axhline(level / GIB, color="black", linestyle=style, linewidth=1, label=label)
    axes.set(title=title, xlabel="tensors made and freed, in order", ylabel="memory (GiB)")
    axes.margins(x=0)
    canvas.legend(loc="outside lower center", ncols=len(KINDS) + len(lines), fontsize="small", frameon=False)
    canvas.savefig(path)
