"""The report in a terminal: figures as rows and runs as columns, so that it reads at any width, then what differs."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accel.compare._cells import ORIGIN_MEANING, ORIGIN_SHORT, Cell, columns
from accel.compare._groups import Difference, Entry, Group, Report
from accel.compare._published import MEANING, TITLE
from accel.compare._published import columns as columns_of_published

_FIELD_WIDTH = 18  # characters for the names of the rows
_RUN_WIDTH = 30  # characters for a run; more runs than fit go to a table below


def print_report(report: Report, console: Console) -> None:
    """Print `report` to `console`."""
    for group in report.groups:
        _print_group(group, console)
    if report.differences:
        count = len(report.groups)
        text = f"{count} groups, not comparable with each other: no ratio crosses them. They differ in"
        console.print(Text(text, style="bold yellow"))
        _print_differences(report.differences, console)
    if report.parity:
        console.print(Text("Loss parity: the same work, step by step", style="bold"))
        _print_words([one.words for one in report.parity], console)
    if report.scaling:
        console.print(Text("Scaling: the same work a device on more devices", style="bold"))
        _print_words([one.words for one in report.scaling], console)
    if report.published:
        _print_published(report, console)
    origins = dict.fromkeys([*(group.origin for group in report.groups), *(["published"] if report.published else [])])
    console.print(Text("; ".join(f"{ORIGIN_SHORT[name]}: {ORIGIN_MEANING[name]}" for name in origins), style="dim"))


def _print_published(report: Report, console: Console) -> None:
    console.print(Text.assemble((TITLE, "bold"), f": {MEANING}"))
    for run in report.published:
        row = columns_of_published(run)
        head = f"{row['chip']} x {row['devices']}: {row['images/s a device']} images/s a device"
        rest = ", ".join([row["precision"], f"batch {row['batch a device']}", row["software"]])
        console.print(Text.assemble((head, "bold"), f" publ, {rest} [{row['confidence']}: {row['source']}]"))
    console.print()


def _print_group(group: Group, console: Console) -> None:
    console.print(
        Text.assemble((f"Group {group.name}", "bold"), " ", ", ".join(f"{k} {v}" for k, v in group.key.items()))
    )
    baseline = group.entries[0]
    fit = max(1, (console.width - _FIELD_WIDTH) // _RUN_WIDTH)
    for start in range(0, len(group.entries), fit):
        console.print(_table(group.entries[start : start + fit], baseline))
    for entry in group.entries:
        for warning in entry.record.warnings:
            console.print(Text(f"{entry.tag} warning: {warning}", style="yellow"))
        for caution in entry.cautions:
            console.print(Text(f"{entry.tag} caution: {caution}", style="yellow"))
        if entry.cost.source:
            console.print(Text(f"{entry.tag} price: {entry.cost.words}", style="dim"))
        unknown = [f"{name}: {cell.why}" for name, cell in columns(entry, baseline).items() if cell.why]
        for source in entry.record.sources:
            console.print(Text(f"{entry.tag} source: {source}", style="dim"))
        if unknown:
            console.print(Text(f"{entry.tag} not known: {'; '.join(unknown)}", style="dim"))
    if group.conditions:
        console.print(Text("Differs inside this group", style="bold"))
        _print_differences(group.conditions, console)
    console.print()


def _table(entries: list[Entry], baseline: Entry) -> Table:
    table = Table()
    table.add_column("")
    for entry in entries:
        table.add_column(Text(f"{entry.tag} {entry.hardware} ({entry.record.backend.name})"), overflow="fold")
    rows = [columns(entry, baseline) for entry in entries]
    for name in rows[0]:
        if any(row[name].text != "-" for row in rows):
            style = "bold" if name == "throughput" else ""
            table.add_row(name, *(_cell(row[name]) for row in rows), style=style)
    table.add_section()
    for name in ("precision", "numerics in force", "batch", "timed", "warm-up", "threads", "torch"):
        table.add_row(name, *(Text(_how(entry)[name]) for entry in entries), style="dim")
    return table


def _how(entry: Entry) -> dict[str, str]:
    record = entry.record
    numerics = (f"{name}={value}" for name, value in record.numerics.in_force.items())
    return {
        "precision": record.numerics.policy,
        "numerics in force": ", ".join(numerics) or "not recorded",
        "batch": f"{record.workload.batch_per_device.words()} a device, {record.workload.global_batch.words()} in all",
        "timed": f"{record.protocol.repeats.words()} of {record.protocol.steps.words()}",
        "warm-up": record.protocol.warmup_steps.words(),
        "threads": f"{record.protocol.threads.words()} ({record.protocol.threads_source})",
        "torch": record.versions.get("torch", "not recorded"),
    }


def _print_words(rows: list[dict[str, str]], console: Console) -> None:
    table = Table()
    for title in rows[0]:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(word) for word in row.values()))
    console.print(table)


def _cell(cell: Cell) -> Text:
    if cell.origin is None:
        return Text(cell.text)
    return Text.assemble(cell.text, " ", (ORIGIN_SHORT[cell.origin], "dim"))


def _print_differences(differences: list[Difference], console: Console) -> None:
    names = list(differences[0].values)
    fit = max(1, (console.width - _FIELD_WIDTH) // _RUN_WIDTH)
    for start in range(0, len(names), fit):
        table = Table()
        table.add_column("field", overflow="fold")
        for name in names[start : start + fit]:
            table.add_column(name, overflow="fold")
        for difference in differences:
            table.add_row(difference.field, *(Text(difference.values[name]) for name in names[start : start + fit]))
        console.print(table)
