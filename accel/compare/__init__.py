"""Comparison of records: which runs may stand side by side, by how much they differ, and what they were run under.

Records with the same workload, protocol and origin form a group; ratios exist only inside a group. Everything else is
shown apart, with the fields that differ named. Nothing here imports torch; matplotlib and jinja2 load only for the HTML
page.
"""

from __future__ import annotations

from accel.compare._cells import show
from accel.compare._cost import parse_prices
from accel.compare._groups import Entry, Group, Report, compare
from accel.compare._html import write_html
from accel.compare._load import Loaded, load
from accel.compare._published import with_published
from accel.compare._terminal import print_report
from accel.compare._text import csv_text, markdown_text

__all__ = [
    "Entry",
    "Group",
    "Loaded",
    "Report",
    "compare",
    "csv_text",
    "load",
    "markdown_text",
    "parse_prices",
    "print_report",
    "show",
    "with_published",
    "write_html",
]
