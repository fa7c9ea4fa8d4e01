"""The figures of a `Memory` as a table for people: value, where it comes from or why there is none."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table

from accel.memory import FIELDS, Memory


def table(memory: Memory, index: int | None = None) -> Table:
    """One row a figure of device `index`. Raises `ArgumentError` for an index out of range."""
    stats = memory.stats(index)
    shown = Table("figure", "value", "source, or why there is none", box=None, pad_edge=False)
    for name in FIELDS:
        value = getattr(stats, name)
        why = stats.reasons[name] if value is None else memory.sources.get(name, "")
        shown.add_row(name, "unknown" if value is None else size(value), why)
    return shown


def text(memory: Memory, index: int | None = None) -> str:
    """The table as lines of plain text."""
    console = Console(file=StringIO(), width=120, force_terminal=False)
    console.print(table(memory, index))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def size(value: int) -> str:
    """Bytes in the unit that reads best."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value} B"
