"""The report as Markdown for a pull request or wiki, and as CSV for a spreadsheet; both name groups and origins."""

from __future__ import annotations

import csv
import io

from accel.compare._cells import Cell, columns
from accel.compare._groups import Difference, Entry, Report
from accel.compare._published import MEANING, TITLE
from accel.compare._published import columns as published_columns
from accel.compare._uncertainty import Interval, Unknown
from accel.records import Figure, Record


def markdown_text(report: Report) -> str:
    """`report` as Markdown: a table a group, and the fields in which the groups differ."""
    lines: list[str] = []
    for group in report.groups:
        baseline = group.entries[0]
        shared = ", ".join(f"{name}: {_escape(value)}" for name, value in group.key.items())
        lines += [f"### Group {group.name}", "", shared, ""]
        lines += _markdown_head(["run", "hardware", "backend", *columns(baseline, baseline)])
        for entry in group.entries:
            cells = [_markdown_cell(cell) for cell in columns(entry, baseline).values()]
            lines.append(_markdown_row([entry.tag, entry.hardware, entry.record.backend.name, *cells]))
        lines.append("")
        warnings = [f"- {entry.tag} warning: {_escape(w)}" for entry in group.entries for w in entry.record.warnings]
        warnings += [f"- {entry.tag} caution: {_escape(c)}" for entry in group.entries for c in entry.cautions]
        warnings += [
            f"- {entry.tag} price: {_escape(entry.cost.words)}" for entry in group.entries if entry.cost.source
        ]
        warnings += [f"- {entry.tag} source: {_escape(s)}" for entry in group.entries for s in entry.record.sources]
        lines += [*warnings, ""] if warnings else []
        lines += _markdown_differences("Differs inside this group", group.conditions)
    lines += _markdown_published(report)
    lines += _markdown_differences("Groups are not comparable with each other; they differ in", report.differences)
    lines += _markdown_words("Loss parity", [one.words for one in report.parity])
    lines += _markdown_words("Scaling", [one.words for one in report.scaling])
    return "\n".join(lines).rstrip() + "\n"


def csv_text(report: Report) -> str:
    """`report` as CSV: one row a record, figures unrounded, units in the titles, each origin in the next column."""
    rows = [
        _csv_row(group.name, group.entries[0], entry) | {f"same in group: {name}": v for name, v in group.key.items()}
        for group in report.groups
        for entry in group.entries
    ]
    titles = list(dict.fromkeys(title for row in rows for title in row))
    for run in report.published:
        row = published_columns(run)
        rows.append(
            {
                "group": "published",
                "run": row["source"],
                "chip": row["chip"],
                "throughput [images/s]": run.throughput,
                "throughput origin": "published",
                "throughput_per_device [images/s]": run.per_device,
                "throughput_per_device origin": "published",
                "warnings": row["conditions"],
                "source": row["source"],
                "published with": ", ".join([row["precision"], f"batch {row['batch a device']}", row["software"]]),
                "confidence": row["confidence"],
            }
        )
    titles += ["source", "published with", "confidence"] if report.published else []
    text = io.StringIO()
    writer = csv.DictWriter(text, titles, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_row(group: str, baseline: Entry, entry: Entry) -> dict[str, object]:
    record = entry.record
    row: dict[str, object] = {
        "group": group,
        "run": record.id,
        "time": record.time,
        "chip": record.hardware.chip.value or "",
        "backend": record.backend.name,
        "baseline": baseline.record.id,
        "ratio to baseline": "" if entry.ratio is None else entry.ratio,
        **_csv_interval("ratio to baseline", entry.ratio_interval),
        "more than noise": entry.verdict or "",
        **_csv_interval("throughput [images/s]", entry.interval),
        "cost of a million images [USD]": "" if entry.cost.million is None else entry.cost.million,
        "cost of an ImageNet epoch [USD]": "" if entry.cost.epoch is None else entry.cost.epoch,
        "price": entry.cost.words if entry.cost.source else "",
    }
    for name, figure in vars(record.results).items():
        if isinstance(figure, Figure):
            row[f"{name} [{figure.unit}]"] = "" if figure.value is None else figure.value
            row[f"{name} origin"] = record.origin_of(figure)
    for name, figure in vars(record.efficiency).items() if record.efficiency else ():
        if isinstance(figure, Figure):
            row[f"{name} [{figure.unit}]"] = "" if figure.value is None else figure.value
    row |= _csv_parts(record)
    row["threads"] = "" if record.protocol.threads.value is None else record.protocol.threads.value
    row["numerics in force"] = "; ".join(f"{name}={value}" for name, value in record.numerics.in_force.items())
    row["versions"] = "; ".join(f"{name}={value}" for name, value in record.versions.items())
    row["warnings"] = "; ".join(record.warnings)
    row["cautions"] = "; ".join(entry.cautions)
    return row


def _csv_parts(record: Record) -> dict[str, object]:
    """Every figure of the parts that not each record has."""
    row: dict[str, object] = {}
    for title, part in (("goal", record.goal), ("input", record.input), ("disturbance", record.disturbance)):
        for name, figure in vars(part).items() if part else ():
            if isinstance(figure, Figure):
                row[f"{title}: {name} [{figure.unit}]"] = "" if figure.value is None else figure.value
    if record.goal is not None:
        row |= {"goal: outcome": record.goal.outcome, "goal: epoch basis": record.goal.epoch_basis}
    if record.input is not None:
        row["input: advice"] = record.input.advice
    return row


def _csv_interval(title: str, interval: Interval | Unknown) -> dict[str, object]:
    low, high = ("", "") if isinstance(interval, Unknown) else interval
    return {f"{title} low, 95 %": low, f"{title} high, 95 %": high}


def _markdown_cell(cell: Cell) -> str:
    return cell.text if cell.origin is None else f"{cell.text} ({cell.origin})"


def _markdown_head(titles: list[str]) -> list[str]:
    return [_markdown_row(titles), "|" + " --- |" * len(titles)]


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _markdown_published(report: Report) -> list[str]:
    if not report.published:
        return []
    rows = [published_columns(run) for run in report.published]
    head = [f"### {TITLE}", "", f"{MEANING[0].upper()}{MEANING[1:]}.", "", *_markdown_head(list(rows[0]))]
    return [*head, *(_markdown_row(list(row.values())) for row in rows), ""]


def _markdown_words(title: str, rows: list[dict[str, str]]) -> list[str]:
    if not rows:
        return []
    return [f"### {title}", "", *_markdown_head(list(rows[0])), *(_markdown_row(list(r.values())) for r in rows), ""]


def _markdown_differences(title: str, differences: list[Difference]) -> list[str]:
    if not differences:
        return []
    rows = [_markdown_row([difference.field, *difference.values.values()]) for difference in differences]
    return [f"**{title}**", "", *_markdown_head(["field", *differences[0].values]), *rows, ""]


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
