"""`accel bench aot-table`: a ResNet's training step compiled for one chip of each TPU generation, at several batches.

Writes one record a cell, and `table.md`, which the documentation includes. Owns what is in the table and how it reads;
a cell is made as `accel bench resnet50 --aot` makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from accel import records
from accel.aot import Compiler, Program
from accel.bench import aot
from accel.bench._options import Options
from accel.compare import show

TOPOLOGIES = ("v3:1x1", "v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1", "tpu7x:1x1x1")  # one chip each
BATCHES = (32, 256, 1024)  # images on one device; a chip of v3 and tpu7x is two devices
TABLE = "table.md"


def run(
    options: Options,
    folder: str | Path,
    command: str,
    *,
    topologies: Iterable[str] = TOPOLOGIES,
    batches: Iterable[int] = BATCHES,
    missing_only: bool = False,
    optimization: str = "O0",
    python: str | None = None,
    told: Callable[[str], object] = str,
) -> Path:
    """Make the records in `folder` and the table of all of them; the table's path.

    `missing_only` keeps the records that are there, to go on with a table that was interrupted. `told` is
    given a line for each cell.
    """
    aot.check(options)
    programs: dict[tuple[int, int], tuple[Program, records.Workload]] = {}
    made: list[records.Record] = []
    with Compiler(python) as compiler:
        places = [compiler.topology(name) for name in topologies]
        for batch in batches:
            for place in places:
                name = f"{options.model}-{options.precision}-{place.name.replace(':', '-')}-batch{batch}"
                path = records.destination(Path(folder) / f"{name}.json", name)
                if missing_only and path.exists():
                    made.append(records.read(path))
                    continue
                started = datetime.now(timezone.utc)
                key = batch, place.devices
                if key not in programs:
                    programs[key] = aot.traced(replace(options, batch=batch), place.devices)
                program, work = programs[key]
                compiled = compiler.compile(program, place.name, optimization=optimization)
                record = aot.record_of(name, started, command, compiled, program, work)
                records.write(record, path)
                made.append(record)
                told(f"{place.name}, batch {batch}: {cell(record)}, compiled in {compiled.seconds:.0f} s")
    target = Path(folder) / TABLE
    target.write_text(table(made), encoding="utf-8")
    return target


def table(made: list[records.Record]) -> str:
    """Markdown: one row a topology, one column a batch, then the versions and dates of the records."""
    cells = {(_prediction(r).topology, r.workload.batch_per_device.value): r for r in made}
    batches = list(dict.fromkeys(batch for _, batch in cells))
    rows = list(dict.fromkeys(topology for topology, _ in cells))
    lines = ["| topology | devices | " + " | ".join(f"batch {batch} a device" for batch in batches) + " |"]
    lines.append("|" + " --- |" * (len(batches) + 2))
    for topology in rows:
        row = [cells.get((topology, batch)) for batch in batches]
        first = next(record for record in row if record is not None)
        words = [topology, f"{first.hardware.devices.value} x {first.hardware.chip.value}"]
        lines.append("| " + " | ".join([*words, *("-" if one is None else cell(one) for one in row)]) + " |")
    return "\n".join([*lines, "", *_footer(made)]) + "\n"


def cell(record: records.Record) -> str:
    """One cell: the memory of a device and the work of a step, or how much memory is missing."""
    found = _prediction(record)
    if not found.fits:
        return f"does not fit: {show(found.missing)} missing of {show(found.needed)}"
    return (
        f"peak {show(record.results.peak_allocated)}, temporary {show(found.temporary)}, {show(found.flops)}, "
        f"{show(found.bytes_accessed)} moved"
    )


def _prediction(record: records.Record) -> records.Prediction:
    assert record.prediction is not None
    return record.prediction


def _footer(made: list[records.Record]) -> list[str]:
    first = made[0]
    dates = sorted({record.time[:10] for record in made})
    names = ("torch", "torch_xla", "jax", "libtpu")
    versions = sorted({", ".join(f"{name} {record.versions[name]}" for name in names) for record in made})
    levels = sorted({_prediction(record).optimization for record in made})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    what = f"{first.workload.model}, {first.workload.image_size.words()}, {first.numerics.policy}"
    how = f"optimization level {' and '.join(levels)}"
    return [f"{what}; origin: {first.origin}. Compiled {when} with {'; '.join(versions)}, {how}."]
