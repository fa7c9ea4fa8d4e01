"""What `accel bench collectives` writes: a JSON record under a schema of its own, a plot beside it, lines to read.

`collectives.schema.json` is the schema, in the manner of accel's training records, which have no place for sizes: an
origin, versions, the clock, a unit in every name, and null with a reason for what is not known.
"""

from __future__ import annotations

import json
import statistics
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel import records
from accel.bench import bandwidth
from accel.errors import ArgumentError, RecordError

if TYPE_CHECKING:
    from accel.bench.collectives import Coalescing, Measured, Plan, Row
    from accel.session import Session

SCHEMA = "accel-collectives/1"
CONVENTIONS = (
    "nccl-tests: size is the larger buffer of a rank, GB are 1e9 bytes, algbw = size/time, busbw = algbw x 2(n-1)/n "
    "(all_reduce), (n-1)/n (all_gather, reduce_scatter, all_to_all), 1 (broadcast, send_recv)"
)


@cache
def schema() -> dict[str, Any]:
    """The published JSON Schema of a record."""
    loaded: dict[str, Any] = json.loads(files("accel.bench").joinpath("collectives.schema.json").read_text("utf-8"))
    return loaded


def check(data: Any, where: str) -> None:
    """Raise `RecordError`, in one line that opens with `where`, unless `data` follows the schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema()).iter_errors(data))
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path) or "record"
        raise RecordError(f"{where}: does not follow {SCHEMA}: {place}: {error.message[:160]}; make the record again")


def plain(
    record_id: str, time: str, command: str, session: Session, machine: Any, plan: Plan, found: Measured, clock: str
) -> dict[str, Any]:
    """The record of one run as plain data. `machine`: from `accel.bench._environment.gather`."""
    ranks, hardware = session.world_size, machine.hardware
    return {
        "schema": SCHEMA,
        "id": record_id,
        "time": time,
        "command": command,
        "benchmark": "collectives",
        "origin": session.backend.origin,
        "backend": {
            "name": session.backend.name,
            "kind": session.backend.kind,
            "fabric": session.backend.transport.name,
        },
        "hardware": {
            "chip": hardware.chip.value,
            "chip_reason": hardware.chip.reason,
            "world_size_ranks": ranks,
            "hosts": hardware.hosts.value,
            "details": hardware.details,
        },
        "versions": machine.versions,
        "protocol": {
            "warmup_calls": plan.warmup,
            "largest_asked_bytes": plan.largest,
            "seconds_a_row": plan.seconds,
            "margin": bandwidth.MARGIN,
            "threads": session.threads.count,
            "threads_source": session.threads.source,
            "clock": clock,
            "conventions": CONVENTIONS,
        },
        "rows": [_row(row, ranks) for row in found.rows],
        "fits": [_fit(rows, ranks) for rows in series(found.rows)],
        "coalescing": None if found.coalescing is None else _coalescing(found.coalescing),
        "not_run": found.not_run,
        "warnings": [*found.warnings, *machine.warnings],
    }


def write(data: dict[str, Any], path: Path) -> Path:
    """Write a checked record to the file `path`, complete or not at all."""
    check(data, f"record {data['id']!r}")
    return records.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", path)


def series(rows: list[Row]) -> list[list[Row]]:
    """Rows by operation, reduction and dtype, each by size."""
    found: dict[tuple[str, str | None, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.operation, row.reduction, row.dtype), []).append(row)
    return list(found.values())


def lines(data: dict[str, Any]) -> list[str]:
    """The record in nccl-tests' columns, with the comparison and the fits, a line each."""
    ranks = data["hardware"]["world_size_ranks"]
    where = f"{data['backend']['fabric']}, {ranks} ranks on {data['hardware']['hosts']} host(s), {data['origin']}"
    places = (
        f"# {'size':>11} {'count':>11} {'type':>10} {'redop':>8} {'root':>5} {'time':>10} {'algbw':>8} {'busbw':>8}"
    )
    found = [
        f"# {where}; {data['protocol']['conventions']}",
        f"{places} {'#wrong':>7}  time over a bare loop: within {data['protocol']['margin']:.0%}?",
        f"# {'(B)':>11} {'(elements)':>11} {'':>10} {'':>8} {'':>5} {'(us)':>10} {'(GB/s)':>8} {'(GB/s)':>8}",
    ]
    operation = None
    for row in data["rows"]:
        if row["operation"] != operation:
            operation = row["operation"]
            found.append(f"# {operation}")
        ratio = row["time_over_bare"]
        low, high = row["time_over_bare_low"], row["time_over_bare_high"]
        bare = "" if ratio is None else f"{ratio:.3f} ({low:.3f} to {high:.3f}) {row['verdict']}"
        found.append(
            f"  {row['size_bytes']:>11} {row['count_elements']:>11} {row['dtype']:>10} {row['reduction'] or 'none':>8} "
            f"{0 if operation == 'broadcast' else -1:>5} {row['time_us']:>10.1f} {row['algbw_gb_per_s']:>8.3f} "
            f"{row['busbw_gb_per_s']:>8.3f} {row['wrong_elements']:>7}  {bare}".rstrip()
        )
    for fit in data["fits"]:
        name = " ".join(str(fit[part]) for part in ("operation", "reduction", "dtype") if fit[part])
        if fit["latency_us"] is None:
            found.append(f"# {name}: no fit, {fit['reason']}")
            continue
        wide = f"unknown ({fit['reason']})" if fit["busbw_gb_per_s"] is None else f"{fit['busbw_gb_per_s']:.3f} GB/s"
        found.append(
            f"# {name}: time = {fit['latency_us']:.1f} us + size/algbw, busbw {wide}; off by "
            f"{fit['worst_relative_error']:.0%} at most"
        )
    together = data["coalescing"]
    if together is not None:
        found.append(
            f"# {together['tensors']} tensors of {together['tensor_bytes']} B: {together['apart_us']:.0f} us in a call "
            f"each, {together['together_us']:.0f} us coalesced, {together['speedup']:.1f} times faster "
            f"({together['speedup_low']:.1f} to {together['speedup_high']:.1f})"
        )
    found += [f"# not run: {what}: {why}" for what, why in data["not_run"].items()]
    return [*found, *(f"# warning: {warning}" for warning in data["warnings"])]


def require_plots() -> None:
    """Raise `ArgumentError` where matplotlib (`accel-torch[report]`) is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ArgumentError(
            f"a plot needs matplotlib, which cannot be imported ({error}): install accel-torch[report], or --no-plot"
        ) from error


def plot(data: dict[str, Any], path: Path) -> Path:
    """Draw time and bus bandwidth over size, with the fits as lines, into the SVG or PNG file `path`."""
    from matplotlib.figure import Figure

    from accel.compare._plots import color

    ranks = data["hardware"]["world_size_ranks"]
    canvas = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = canvas.subplots(1, 2)
    for index, fit in enumerate(data["fits"]):
        kind = ("operation", "reduction", "dtype")
        rows = [row for row in data["rows"] if all(row[name] == fit[name] for name in kind)]
        sizes = [row["size_bytes"] for row in rows]
        name = " ".join(str(fit[name]) for name in kind if fit[name])
        left.plot(sizes, [row["time_us"] for row in rows], "o", color=color(index), markersize=4, label=name)
        right.plot(sizes, [row["busbw_gb_per_s"] for row in rows], "o", color=color(index), markersize=4)
        if fit["latency_us"] is not None:
            beta = 0.0 if fit["algbw_gb_per_s"] is None else 1 / (fit["algbw_gb_per_s"] * 1e3)  # us a byte
            modelled = [fit["latency_us"] + size * beta for size in sizes]
            factor = bandwidth.factor(fit["operation"], ranks)
            left.plot(sizes, modelled, color=color(index), linewidth=1)
            buses = [size / us / 1e3 * factor for size, us in zip(sizes, modelled, strict=True)]
            right.plot(sizes, buses, color=color(index), linewidth=1)
    for axes, label in ((left, "time (us)"), (right, "bus bandwidth (GB/s)")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("size (bytes)")
        axes.set_ylabel(label)
        axes.grid(alpha=0.2)
    left.legend(frameon=False, fontsize=8)
    canvas.suptitle(
        f"{data['backend']['fabric']}, {ranks} ranks, {data['hardware']['chip'] or 'unknown chip'} ({data['origin']}); "
        "lines: latency + size/bandwidth",
        fontsize=9,
    )
    try:
        canvas.savefig(path)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"cannot write the plot {str(path)!r} ({error}); choose another folder with --out"
        ) from error
    return path


def _row(row: Row, ranks: int) -> dict[str, Any]:
    ratio = row.ratio()
    ordered = sorted(row.times)
    return {
        "operation": row.operation,
        "reduction": row.reduction,
        "dtype": row.dtype,
        "size_bytes": row.size,
        "count_elements": row.elements,
        "calls_a_block": row.calls,
        "blocks": len(row.times),
        "time_us": _us(row.seconds),
        "time_us_least": _us(ordered[0]),
        "time_us_most": _us(ordered[-1]),
        "algbw_gb_per_s": bandwidth.algbw(row.size, row.seconds),
        "busbw_gb_per_s": bandwidth.busbw(row.operation, row.size, row.seconds, ranks),
        "wrong_elements": row.wrong,
        "bare_time_us": _us(statistics.median(row.bare)) if row.bare else None,
        "time_over_bare": None if ratio is None else round(ratio[0], 4),
        "time_over_bare_low": None if ratio is None else round(ratio[1], 4),
        "time_over_bare_high": None if ratio is None else round(ratio[2], 4),
        "verdict": row.verdict(),
    }


def _fit(rows: list[Row], ranks: int) -> dict[str, Any]:
    first = rows[0]
    data: dict[str, Any] = {"operation": first.operation, "reduction": first.reduction, "dtype": first.dtype}
    if len(rows) < 2:
        unknown = dict.fromkeys(("latency_us", "algbw_gb_per_s", "busbw_gb_per_s", "worst_relative_error"))
        return {**data, **unknown, "points": len(rows), "reason": "a line needs two sizes at least"}
    found = bandwidth.fit([(row.size, row.seconds) for row in rows])
    algbw = None if found.bandwidth is None else found.bandwidth / 1e9
    return {
        **data,
        "latency_us": _us(found.latency),
        "algbw_gb_per_s": algbw,
        "busbw_gb_per_s": None if algbw is None else algbw * bandwidth.factor(first.operation, ranks),
        "worst_relative_error": round(found.worst, 4),
        "points": found.points,
        "reason": "larger sizes took no longer" if algbw is None else None,
    }


def _coalescing(one: Coalescing) -> dict[str, Any]:
    middle, low, high = one.speedup()
    return {
        "operation": "all_reduce",
        "tensors": one.tensors,
        "tensor_bytes": one.size,
        "apart_us": _us(statistics.median(one.apart)),
        "together_us": _us(statistics.median(one.together)),
        "blocks": len(one.apart),
        "speedup": round(middle, 2),
        "speedup_low": round(low, 2),
        "speedup_high": round(high, 2),
    }


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 2)
