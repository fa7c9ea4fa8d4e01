"""`accel chips`: the chip table, and one chip with the sources of every figure."""

from __future__ import annotations

from typing import Annotated

import rich
import typer
from rich.table import Table
from rich.text import Text

from accel import chips as table
from accel.chips import Chip, Price, Value


def chips(
    name: Annotated[str | None, typer.Argument(help="Show one chip with its sources, such as H100-SXM5.")] = None,
) -> None:
    """List the chips whose peaks are known, or show one with the source of every figure."""
    console = rich.get_console()
    if name is None:
        _list(console)
    else:
        _show(table.get(name), console)


def _list(console: rich.console.Console) -> None:
    shown = Table("chip", "fp32", "tf32", "bf16", "fp16", "memory", "bandwidth", "power", box=None, pad_edge=False)
    for chip in table.table().values():
        peaks = [_number(chip.dense.get(dtype)) for dtype in ("fp32", "tf32", "bf16", "fp16")]
        rest = [
            f"{value.value:g} {value.unit}" if value else "-" for value in (chip.memory, chip.bandwidth, chip.power)
        ]
        shown.add_row(chip.name, *peaks, *rest)
    console.print(shown)
    legend = "Dense peaks in TFLOP/s a chip; ~ marks a figure of medium or low confidence, - one with no source."
    console.print(Text(legend), soft_wrap=True)


def _number(value: Value | None) -> str:
    return "-" if value is None else f"{'' if value.confidence == 'high' else '~'}{value.value:g}"


def _show(chip: Chip, console: rich.console.Console) -> None:
    lines = [f"{chip.name} ({chip.vendor})"]
    lines += _section("dense peak", dict(chip.dense), "none with a source")
    lines += _section("other figures for it, not used", {k: v for k, items in chip.alternatives.items() for v in items})
    lines += [f"  choice: {chip.choice}"] if chip.choice else []
    lines += _section("peak with 2:4 sparsity (never a denominator)", dict(chip.sparse))
    rest = {"memory": chip.memory, "bandwidth": chip.bandwidth, "links": chip.link, "power limit": chip.power}
    lines += _section("board", {**rest, "year": chip.year})
    lines += [f"  interconnect: {chip.interconnect or 'no source'}"]
    if chip.devices_per_chip > 1:
        lines.append(f"  devices a chip: {chip.devices_per_chip}, each with its share of these figures")
    lines += _section("other figures", dict(chip.other))
    lines += (
        ["price", *(line for price in chip.prices for line in _price(price))] if chip.prices else ["price: no source"]
    )
    lines += ["notes", *(f"  {note}" for note in chip.notes)] if chip.notes else []
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _section(title: str, values: dict[str, Value | None] | dict[str, Value], empty: str | None = None) -> list[str]:
    if not values:
        return [f"{title}: {empty}"] if empty else []
    return [title, *(line for name, value in values.items() for line in _value(name, value))]


def _value(name: str, value: Value | None) -> list[str]:
    if value is None:
        return [f"  {name}: no source"]
    head = f"  {name}: {value.value:g} {value.unit} ({value.confidence} confidence)"
    return [f"{head}; {value.conditions}" if value.conditions else head, *_why(value)]


def _price(price: Price) -> list[str]:
    when = price.date or f"no date: {price.date_note}"
    head = f"  {price.value:g} {price.unit}, {price.place}, {when} ({price.confidence} confidence)"
    return [f"{head}; {price.conditions}" if price.conditions else head, *_why(price)]


def _why(value: Value | Price) -> list[str]:
    conflict = [f"    but: {value.conflict}"] if value.conflict else []
    return [*(f"    {source}" for source in value.source), *conflict]
