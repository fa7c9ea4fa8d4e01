"""Published figures laid beside a report: a table of its own, with sources, to which no ratio and no plot leads."""

from __future__ import annotations

from dataclasses import replace

from accel import published
from accel.compare._groups import Report
from accel.errors import ArgumentError
from accel.published import Run

TITLE = "Published by others, not measured by accel"
MEANING = "other software, data and settings than the runs above; no ratio leads from one to the other"


def with_published(report: Report) -> Report:
    """`report` with the published runs of its models. Raises `ArgumentError` where there are none."""
    names = dict.fromkeys(entry.record.workload.model for entry in report.entries)
    found: list[Run] = []
    why = ""
    for name in names:
        try:
            found += published.runs(name)
        except ArgumentError as error:
            why = str(error)
    if not found:
        raise ArgumentError(f"--with-published: {why}; leave the option out, or compare records of such a model")
    return replace(report, published=tuple(sorted(found, key=lambda run: (run.chip is None, _maker(run), run.devices))))


def columns(run: Run) -> dict[str, str]:
    """A published run in words, by column title."""
    notes = [*run.notes, *(["evaluation is in the time"] if run.evaluation_included else [])]
    return {
        "chip": run.printed_chip,
        "in the chip table": run.chip or "no, or the source does not say which",
        "devices": f"{run.devices:,}",
        "images/s": f"{run.throughput:,.0f}",
        "images/s a device": f"{run.per_device:,.0f}",
        "origin": "published",
        "precision": f"{run.precision} ({run.printed_precision})",
        "batch a device": "not printed" if run.batch_per_device is None else f"{run.batch_per_device:,}",
        "software": run.software,
        "confidence": run.confidence,
        "conditions": "; ".join(notes),
        "source": run.source,
    }


def _maker(run: Run) -> str:
    return run.chip or run.printed_chip
