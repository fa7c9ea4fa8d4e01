"""The benchmark's runs of `accel conformance`: one way of executing, in every precision that the backend has.

    python -m accel.conformance._runs BACKEND EXECUTION OUT SECONDS

Writes a record for each run to OUT/records and a row to OUT/bench-EXECUTION.jsonl as soon as it is over.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.conformance import Line
from accel.errors import AccelError

if TYPE_CHECKING:
    from accel.backend import Backend
    from accel.records import Record

EXECUTIONS = {"eager": "", "graphs": "train.graphs", "compile": "prepare.compile"}  # and the capability of each
PRECISIONS = ("bf16", "fp16", "tf32", "fp32")  # what is compared most first: time may run out
FIRST_LOSS = 0.02  # relative: how far apart the first losses of two precisions or executions may be


@dataclass(frozen=True)
class Plan:
    """What each run trains, and the seconds that one needs at least."""

    model: str
    size: int
    batch: int
    steps: int
    repeats: int
    warmup: int
    least: float


FULL = Plan("resnet50", 224, 256, steps=10, repeats=3, warmup=5, least=15.0)
SMALL = Plan("resnet18", 32, 4, steps=1, repeats=1, warmup=1, least=0.0)  # a host, or an emulator: does it run


def main(backend: str, execution: str, out: Path, seconds: float) -> int:
    from accel import registry

    end = time.monotonic() + seconds
    parts = registry.get_backend(backend)
    plan = SMALL if parts.device.is_host or parts.origin != "measured" else FULL
    table = parts.capabilities()
    feature = EXECUTIONS[execution]
    first: float | None = None
    for precision in PRECISIONS:
        name = f"{plan.model} {precision} {execution}"
        why = ""
        if feature and not table.offers(feature):
            cell = table.get(feature)
            why = cell.why if cell else f"the capability table does not list {feature}"
        elif plan is SMALL and feature:
            why = "left to real hardware: compiling and recording cost minutes on a host"
        elif not table.offers(f"precision.{precision}"):
            why = table[f"precision.{precision}"].why
        elif end - time.monotonic() < plan.least * (2 if execution == "compile" else 1):
            line = Line("bench", name, "failed", 0.0, f"not run: {end - time.monotonic():.0f} s are left of the limit")
            _say(line, execution, out)
            continue
        if why:
            _say(Line("bench", name, "left out", 0.0, why), execution, out)
            continue
        line, loss = _one(plan, precision, execution, name, out, parts, first)
        first = loss if first is None else first
        _say(line, execution, out)
        _free(parts)
    return 0


def _one(
    plan: Plan, precision: str, execution: str, name: str, out: Path, backend: Backend, first: float | None
) -> tuple[Line, float | None]:
    from accel.bench._options import Options
    from accel.bench.resnet50 import run

    options = Options(
        model=plan.model, data="synthetic", size=plan.size, batch=plan.batch, precision=precision,
        steps=plan.steps, repeats=plan.repeats, warmup=plan.warmup,
        compile=execution == "compile", graphs=execution == "graphs",
    )  # fmt: skip
    words = {"compile": " --compile", "graphs": " --cuda-graphs"}.get(execution, "")
    command = (
        f"accel bench resnet50 --model {plan.model} --data synthetic --size {plan.size} --batch {plan.batch} "
        f"--precision {precision} --steps {plan.steps} --repeats {plan.repeats} --warmup {plan.warmup}{words}"
    )
    started = time.monotonic()
    try:
        done = run(options, out / "records", command)
    except (AccelError, RuntimeError, MemoryError) as error:
        took = time.monotonic() - started
        if backend.memory.is_oom(error):
            return Line("bench", name, "left out", took, f"batch {plan.batch} does not fit in memory: {error}"), None
        return Line("bench", name, "failed", took, f"{type(error).__name__}: {error}"), None
    assert done is not None  # one process is rank 0
    return _judged(name, done[1], time.monotonic() - started, first)


def _judged(name: str, record: Record, took: float, first: float | None) -> tuple[Line, float | None]:
    """A run passes when its losses are numbers that begin as those of the other runs: all start from one seed."""
    results = record.results
    losses = [loss for _, loss in results.loss_curve.points]
    known = [float(loss) for loss in losses if loss is not None]
    rate, peak = results.throughput.value, results.peak_allocated.value
    detail = f"{rate:.0f} images/s" if rate and rate >= 10 else f"{rate:.3g} images/s"
    detail += f", peak {peak / 2**30:.1f} GiB" if peak else ""
    detail += f", loss {known[0]:.3f} to {known[-1]:.3f}" if known else ""
    detail += "".join(f"; warning: {warning}" for warning in record.warnings)
    good = len(known) == len(losses) > 0
    if good and first is not None and abs(known[0] - first) > FIRST_LOSS * abs(first):
        good, detail = False, f"{detail}; the first loss should be near {first:.3f}, as in the first run"
    return Line("bench", name, "passed" if good else "failed", took, detail), known[0] if known else None


def _say(line: Line, execution: str, out: Path) -> None:
    with (out / f"bench-{execution}.jsonl").open("a") as rows:
        rows.write(json.dumps(asdict(line)) + "\n")


def _free(backend: Backend) -> None:
    """Let go of what the run before held, so that the next one's peak is its own."""
    compiler: Any = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.reset()
    gc.collect()
    backend.memory.empty_cache()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])))
