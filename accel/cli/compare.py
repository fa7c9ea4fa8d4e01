"""`accel compare`: records side by side, as a terminal table, Markdown, CSV, and one HTML page."""

from __future__ import annotations

import sys
from typing import Annotated

import rich
import typer

from accel.errors import ArgumentError


def compare(
    paths: Annotated[
        list[str], typer.Argument(metavar="RECORD_OR_FOLDER...", help="Record files, or folders of them.")
    ],
    html: Annotated[str | None, typer.Option(help="Write one self-contained HTML page to this file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of a table.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    baseline: Annotated[
        str | None, typer.Option(metavar="RUN", help="Start of the id of the run that ratios are against.")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="CHIP=USD", help="USD an hour of one chip, instead of the chip table's; again for more."),
    ] = None,
    with_published: Annotated[
        bool, typer.Option("--with-published", help="Lay published figures of the same models beside, with sources.")
    ] = False,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out .json files of a folder that are not records.")
    ] = False,
) -> None:
    """Compare runs: those with the same workload and origin side by side, the others apart with what differs."""
    from accel import compare as comparing

    if markdown and csv:
        raise ArgumentError("both --markdown and --csv were given; give one of the two")
    prices = comparing.parse_prices(price or ())
    loaded = comparing.load(paths, skip_invalid=skip_invalid)
    report = comparing.compare(loaded.records.values(), baseline=baseline, prices=prices)
    if with_published:
        report = comparing.with_published(report)
    written = comparing.write_html(report, html, loaded.skipped) if html else None
    if markdown:
        sys.stdout.write(comparing.markdown_text(report))
    elif csv:
        sys.stdout.write(comparing.csv_text(report))
    else:
        comparing.print_report(report, rich.get_console())
    notes = rich.console.Console(stderr=True, soft_wrap=True)
    for line in loaded.skipped:
        notes.print(f"left out: {line}", markup=False, highlight=False)
    if written:
        notes.print(f"page: {written}", markup=False, highlight=False)
