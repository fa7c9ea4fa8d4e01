"""The report as one HTML page that needs nothing else: no script, no fonts, no address to fetch from."""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path

from accel import __version__
from accel.compare._cells import ORIGIN_MEANING, columns
from accel.compare._groups import Entry, Group, Report
from accel.compare._published import MEANING, TITLE
from accel.compare._published import columns as columns_of_published
from accel.errors import ArgumentError
from accel.records import Figure, InputTrial, Label, Series


def write_html(report: Report, path: str | os.PathLike[str], skipped: list[str] | None = None) -> Path:
    """Write `report` as an HTML page, complete or not at all; `skipped` are lines about files left out.

    Raises `ArgumentError` when the extra `report` is not installed or `path` cannot be written.
    """
    try:
        import jinja2

        from accel.compare import _plots
    except ImportError as error:
        raise ArgumentError(
            f"--html needs jinja2 and matplotlib ({error}); install them with: pip install 'accel-torch[report]'"
        ) from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(files("accel.compare").joinpath("report.html.j2").read_text(encoding="utf-8"))
    page = template.render(
        report=report,
        groups=[(group, _title(group), _rows(group), _plots.plots(group)) for group in report.groups],
        origins={name: ORIGIN_MEANING[name] for name in _origins(report)},
        scaling=_plots.scaling(report.scaling),
        published=[columns_of_published(run) for run in report.published],
        published_title=TITLE,
        published_meaning=MEANING,
        skipped=skipped or [],
        color=_plots.color,
        details=_details,
        glue=_glue,
        version=__version__,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    )
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(page, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        if draft.is_file():
            draft.unlink()
        reason = error.strerror or error
        raise ArgumentError(
            f"cannot write the page {str(target)!r} ({reason}); choose another file with --html"
        ) from error
    return target


def _origins(report: Report) -> list[str]:
    found = dict.fromkeys(group.origin for group in report.groups)
    return [*found, *(["published"] if report.published and "published" not in found else [])]


def _title(group: Group) -> str:
    names = ("model", "data", "image size", "precision")
    return ", ".join(group.key[name] for name in names)


def _rows(group: Group) -> list[tuple[Entry, dict[str, object]]]:
    """The columns in which at least one record has a value, for each record."""
    rows = [columns(entry, group.entries[0]) for entry in group.entries]
    shown = [name for name in rows[0] if any(row[name].text != "-" for row in rows)]
    return [(entry, {name: row[name] for name in shown}) for entry, row in zip(group.entries, rows, strict=True)]


def _details(entry: Entry) -> dict[str, dict[str, str]]:
    """Everything else in a record, by heading."""
    record = entry.record
    protocol = {name: _text(value) for name, value in vars(record.protocol).items()}
    work = {name: _text(value) for name, value in vars(record.workload).items()}
    run = {"run": record.id, "time": record.time, "command": record.command, "backend": record.backend.name}
    hardware = {name: _text(getattr(record.hardware, name)) for name in ("devices", "world_size", "hosts")}
    cells = columns(entry, entry)
    unknown = {name: cell.why for name, cell in cells.items() if cell.why}
    made_of = {name: ", ".join(cell.fields) for name, cell in cells.items() if cell.fields}
    counted = vars(record.efficiency).items() if record.efficiency else ()
    return {
        "Work and utilisation": {name: _text(value) for name, value in counted},
        "Price": {"price": entry.cost.words} if entry.cost.source else {},
        "Sources": {str(index): source for index, source in enumerate(record.sources, 1)},
        "Run": run | {"execution": record.backend.kind, "origin": record.origin},
        "Numerics in force": {name: str(value) for name, value in record.numerics.in_force.items()},
        "Epochs and target": _figures(record.goal),
        "Input": _figures(record.input),
        "Disturbance": _figures(record.disturbance),
        "Protocol": protocol,
        "Workload": work,
        "Hardware": hardware | record.hardware.details,
        "Versions": record.versions,
        "Not known": unknown,
        "Fields of the record behind each figure": made_of,
    }


def _figures(part: object) -> dict[str, str]:
    """The fields of a part of a record in words; none where the record has no such part."""
    return {} if part is None else {name: _text(value) for name, value in vars(part).items()}


def _glue(text: str) -> str:
    """`text` with a number kept on one line with its unit; only after "to" and "at" may it break."""
    return re.sub(r"(?<! to)(?<! at) ", "\u00a0", text)


def _text(value: object) -> str:
    if isinstance(value, Label):
        return value.value or f"unknown ({value.reason})"
    if isinstance(value, InputTrial):
        pinned = ", pinned" if value.pinned else ""
        return f"{value.workers.words()}{pinned}: {value.throughput.words()}, {value.data_share.words()} waiting"
    if isinstance(value, Series):
        return ", ".join(f"{one:,} {value.unit}" for one in value.values) or f"unknown ({value.reason})"
    if isinstance(value, tuple):
        return "; ".join(map(_text, value)) or "none"
    return value.words() if isinstance(value, Figure) else str(value)
