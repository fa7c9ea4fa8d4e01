"""`accel conformance`: prove a backend on this machine - the suite, the benchmark, one report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import rich
import typer
from rich.table import Table

from accel.errors import ArgumentError


def conformance(
    backend: Annotated[str, typer.Option(help="Registered backend to test; the others are left alone.")],
    out: Annotated[str, typer.Option(help="Folder for the report, the logs and the benchmark's records.")],
    only: Annotated[list[str] | None, typer.Option(help="suite or bench; repeatable. Default: both.")] = None,
    tests: Annotated[str, typer.Option(help="Only the suite's tests that match, as pytest's -k.")] = "",
    limit: Annotated[float, typer.Option(help="Seconds for everything.")] = 350.0,
) -> None:
    """Run the conformance suite and ResNet-50 in every precision, eager, as graphs and compiled; report what passed.

    Exit code 0: all that ran passed; 1: something failed; 2: the backend cannot be used here.
    """
    from accel.conformance import PARTS, REPORT, run

    parts = tuple(only) if only else PARTS
    if not set(parts) <= set(PARTS):
        raise ArgumentError(f"--only {' '.join(parts)}: expected {' or '.join(PARTS)}")
    if not limit > 0:
        raise ArgumentError(f"--limit {limit:g}: expected a number of seconds above 0")
    outcome = run(backend, Path(out).resolve(), parts, tests, limit)
    table = Table("part", "what", "result", "s", "detail", box=None, pad_edge=False)
    for line in outcome.lines:
        table.add_row(line.part, line.name, line.status, f"{line.seconds:.0f}", line.detail)
    console = rich.get_console()
    console.print(table)
    verdict = "passed" if outcome.passed else "FAILED"
    console.print(f"{outcome.backend} ({outcome.origin}): {verdict}; report: {out}/{REPORT}", soft_wrap=True)
    if "bench" in parts:
        console.print(f"compare its records: accel compare {out}/records", soft_wrap=True)
    raise typer.Exit(0 if outcome.passed else 1)
