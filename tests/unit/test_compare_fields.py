"""Every figure of a report can be traced: to the fields of a record that its cell names, and to nothing else in it."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from accel.compare import Report, compare, write_html
from accel.compare._cells import BASELINE, PRICE, Cell, columns
from accel.records import Curve, Figure, Record, Series
from tests.unit.test_compare import record
from tests.unit.test_compare_cost import H100, MISSED, RAN
from tests.unit.test_compare_judgement import DISTURBED

PARTS = ("results", "goal", "efficiency", "disturbance")  # what a run gave; the rest says what was run
MORE = {
    **H100,
    **{
        f"results__{name}": {"value": value, "unit": unit}
        for unit, values in {
            "s": {"data_time": 0.1, "forward_time": 0.3, "backward_time": 0.5, "update_time": 0.1, "reduce_time": 0.01,
                  "compile_time": 2.0},
            "fraction": {"reduce_overlap": 0.5, "data_share": 0.05},
            "J/image": {"energy": 3.5},
            "operations": {"fallbacks": 1},
            "bytes": {"peak_allocated": 2**30},
        }.items()
        for name, value in values.items()
    },
    "disturbance": {**DISTURBED, "cpu_wait": {"value": 0.2, "unit": "fraction"}},
    "efficiency": {
        "chip": {"value": "H100-SXM5"},
        "arithmetic": {"value": "fp32"},
        **{
            name: {"value": value, "unit": unit}
            for name, value, unit in (
                ("peak", 66.9e12, "FLOP/s"), ("achieved", 1e12, "FLOP/s"), ("mfu", 0.015, "fraction"),
                ("macs_forward", 1, "MAC/image"), ("flops_forward", 2, "FLOP/image"),
                ("flops_training", 6, "FLOP/image"),
                ("bytes_training", 6, "bytes/image"), ("elements_training", 6, "operations/image"),
            )
        },
    },
}  # fmt: skip


def report() -> Report:
    first, second = record("one", **MORE, goal=RAN), record("two", **MORE, goal=MISSED, results__throughput__value=80.0)
    return compare([first, second], prices={"H100-SXM5": 2.0})


def table(given: Report) -> dict[tuple[int, str], Cell]:
    """Cells by row and column title."""
    rows = [columns(entry, given.entries[0]) for entry in given.entries]
    return {(index, name): cell for index, row in enumerate(rows) for name, cell in row.items() if cell.text != "-"}


def without(given: Record, kept: set[str]) -> Record:
    """`given` with every figure that its run gave made unknown, except those of the paths `kept`."""

    def blank(value: Any, path: str) -> Any:
        if path in kept:
            return value
        if isinstance(value, Figure):
            return dataclasses.replace(value, value=None, reason="left out")
        if isinstance(value, Series):
            return dataclasses.replace(value, values=(), reason="left out")
        if isinstance(value, Curve):
            return dataclasses.replace(value, points=(), reason="left out")
        return value

    parts = {}
    for name in PARTS:
        part = getattr(given, name)
        if part is not None:
            changes = {key: blank(value, f"{name}.{key}") for key, value in vars(part).items()}
            parts[name] = dataclasses.replace(part, **changes)
    return dataclasses.replace(given, **parts)


CELLS = table(report())


def test_every_column_is_tried() -> None:
    names = {name for _, name in CELLS}
    assert names == set(columns(report().entries[0], report().entries[0]))


@pytest.mark.parametrize(("row", "name"), CELLS)
def test_a_cell_is_made_of_the_fields_that_it_names_and_of_no_other(row: int, name: str) -> None:
    cell = CELLS[row, name]
    assert cell.fields, f"{name} says {cell.text} and not where that is from"
    own = {field for field in cell.fields if not field.startswith((BASELINE, PRICE))}
    base = {field.removeprefix(BASELINE) for field in cell.fields if field.startswith(BASELINE)}
    first, second = (entry.record for entry in report().entries)
    for field in own | base:
        attrgetter(field)(first)  # there is such a field
    if row == 0:
        first = without(first, own | base)
    else:
        first, second = without(first, base), without(second, own)
    again = table(compare([first, second], prices={"H100-SXM5": 2.0}))[row, name]
    assert (again.text, again.origin, again.fields) == (cell.text, cell.origin, cell.fields)


@pytest.mark.parametrize(("row", "name"), CELLS)
def test_a_cell_needs_the_first_field_that_it_names(row: int, name: str) -> None:
    cell = CELLS[row, name]
    records = [entry.record for entry in report().entries]
    everything = {f"{part}.{key}" for part in PARTS for key in vars(getattr(records[row], part) or record("x").results)}
    records[row] = without(records[row], everything - {cell.fields[0]})
    again = table(compare(records, prices={"H100-SXM5": 2.0}))
    assert again.get((row, name)) != cell


class Hints(HTMLParser):
    """Collects the hint of each figure of the page, by its column."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.captions: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "td" and "data-title" in named:
            self.found.append((str(named["data-title"]), str(named.get("title"))))
        self._inside = tag == "figcaption"

    def handle_data(self, data: str) -> None:
        if self._inside and data.strip():
            self.captions.append(data)
            self._inside = False


def test_the_page_says_where_each_figure_and_each_plot_is_from(tmp_path: Path) -> None:
    page = Hints(write_html(report(), tmp_path / "page.html").read_text())
    given = iter(report().entries)
    expected = [(name, cell.hint) for entry in given for name, cell in columns(entry, report().entries[0]).items()]
    shown = dict.fromkeys(name for name, _ in page.found)
    assert page.found == [(name, str(hint)) for name, hint in expected if name in shown]
    assert len(shown) > 20
    assert len(page.captions) >= 6
    for caption in page.captions:
        (named,) = re.findall(r" From ([a-z_0-9., ]+)\.(?: |$)", caption)
        for field in named.split(", "):
            attrgetter(field)(report().entries[0].record)
