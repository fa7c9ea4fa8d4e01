"""`accel bench resnet50 --aot TOPOLOGY`: the benchmark's step compiled for TPUs that are not there, as a record.

The step is the one that `accel bench resnet50` times: same model, recipe and session. Owns the record of origin
`predicted`; recording and compiling are `accel.aot`.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel import records
from accel.aot import Compiled, Compiler, Fit, Program, largest_batch
from accel.aot._fit import MOST
from accel.bench._options import Options, benchmark
from accel.errors import ArgumentError
from accel.precision import checked_policy
from accel.records import Figure

if TYPE_CHECKING:
    from accel.data import ImageDataset
    from accel.session import Session

NOT_RUN = "the program was compiled and never ran"
ONE = "one replica; nothing is communicated"
SEVERAL = "data parallel: one replica a device, each on a batch of its own, gradients averaged by one all_reduce"
OPTIMIZED = (
    "compiled at optimization level {}, which is quicker than libtpu's own default and gives another peak; "
    "--aot-optimization default compiles as a TPU host does"
)


def run(
    options: Options,
    topology: str,
    out: str | Path,
    command: str,
    *,
    fit: bool = False,
    optimization: str = "O0",
    python: str | None = None,
) -> tuple[Path, records.Record]:
    """Compile the step for `topology` and write a record to the file or folder `out`; its path, and the record.

    `options.batch` is of one device, as everywhere. With `fit` the record is of the largest batch that fits. Raises
    `ArgumentError` for what cannot be compiled ahead of time, before anything is, and what `accel.aot` raises.
    """
    check(options)
    with Compiler(python) as compiler:
        place = compiler.topology(topology)
        started = datetime.now(timezone.utc)
        name = f"{options.model}-{options.precision}-aot-{topology.replace(':', '-')}"
        record_id = records.new_id(name, started)
        path = records.destination(out, record_id)
        dataset = _dataset(options)
        made: dict[int, tuple[Program, records.Workload]] = {}

        def attempt(batch: int) -> Compiled:
            program, work = traced(replace(options, batch=batch), place.devices)
            made[batch] = replace(program, text=""), work  # a text may have megabytes
            return compiler.compile(program, topology, optimization=optimization)

        if not fit:
            compiled = attempt(options.batch)
            record = record_of(record_id, started, command, compiled, *made[options.batch])
            return records.write(record, path), record
        found = largest_batch(attempt, options.batch, most=_most(dataset.size, options.batch))
        batch = found.batch or min(found.tried)
        record = record_of(record_id, started, command, found.tried[batch], *made[batch])
        record = _with_fit(record, found)
        return records.write(record, path), record


def check(options: Options) -> None:
    """Raise `ArgumentError` for options of a run that have no meaning where nothing runs."""
    checked_policy(options.precision)
    if options.accumulate > 1 or options.epochs is not None or options.evaluate:
        raise ArgumentError("--aot compiles one optimizer step: leave out --accumulate, --epochs and --evaluate")


def traced(options: Options, replicas: int) -> tuple[Program, records.Workload]:
    """The benchmark's optimizer step for one of `replicas` devices, and the workload that it is part of."""
    import torch

    from accel.aot import export
    from accel.bench import _train

    dataset = _dataset(options)
    work: list[records.Workload] = []

    def build(session: Session) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        shape = (options.batch, 3, dataset.size, dataset.size)
        images = torch.zeros(shape, device=session.device)  # only its shape matters
        labels = torch.zeros(options.batch, dtype=torch.int64, device=session.device)
        loader = _train.Again((images, labels))
        trainer = _train.Trainer(session, options, dataset, loader, options.steps or 10, replicas)
        work.append(_train.workload(trainer, dataset, options))
        windows = trainer.windows(session.meter())
        return lambda: next(windows), ()

    program = export(build, precision=options.precision, replicas=replicas)
    return program, replace(work[0], delivery=_train.SYNTHETIC)


def _dataset(options: Options) -> ImageDataset:
    from accel import data

    return data.parse(options.data, options.size, length=1, seed=options.seed)[0]


def _most(size: int, start: int) -> int:
    """Images that a quarter of this machine's memory holds: the batch is there for real while a step is recorded."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(start, min(MOST, memory // 4 // (3 * size * size * 4)))


def _prediction(compiled: Compiled) -> records.Prediction:
    place = compiled.topology

    def size(value: float | None, unit: str = "bytes") -> Figure:
        return Figure(value, unit, reason=None if value is not None else "the program does not fit")

    short = compiled.shortage

    def of_shortage(value: int | None) -> Figure:
        reason = "the program fits" if short is None else "the compiler gave no size"
        return Figure(value, "bytes", reason=None if value is not None else reason)

    return records.Prediction(
        topology=place.name,
        program=ONE if place.devices == 1 else SEVERAL,
        optimization=compiled.optimization,
        fits=compiled.fits,
        compile_time=Figure(compiled.seconds, "s", origin="measured"),
        temporary=size(compiled.temporary),
        arguments=size(compiled.arguments),
        outputs=size(compiled.outputs),
        aliased=size(compiled.aliased),
        code=size(compiled.code),
        flops=size(compiled.flops, "FLOP"),
        bytes_accessed=size(compiled.bytes_accessed),
        needed=of_shortage(None if short is None else short.needed),
        available=of_shortage(None if short is None else short.available),
        missing=of_shortage(None if short is None else short.missing),
        largest_batch=Figure(None, "images", reason="not searched; run with --fit"),
        batches_tried=(),
        message=None if short is None else short.message,
    )


def _with_fit(record: records.Record, found: Fit) -> records.Record:
    assert record.prediction is not None
    best = Figure(found.batch, "images", reason=None if found.batch else "not even a batch of 1 fits")
    warnings = record.warnings
    if found.batch and found.too_large is None:
        warnings += (f"every batch that this machine can record, up to {found.batch}, fits: the largest may be larger",)
    prediction = replace(record.prediction, largest_batch=best, batches_tried=tuple(found.tried))
    return replace(record, prediction=prediction, warnings=warnings)


def record_of(
    record_id: str,
    started: datetime,
    command: str,
    compiled: Compiled,
    program: Program,
    work: records.Workload,
) -> records.Record:
    """The record of one compilation."""
    place = compiled.topology

    no_peak = None if compiled.peak is not None else "the program does not fit"
    quick = compiled.optimization != "default"
    return records.predicted(
        NOT_RUN,
        id=record_id,
        made=started,
        command=command,
        benchmark=benchmark(work.model),
        backend=records.BackendPart("xla", "lazy"),
        chip=records.Label(place.kind),
        devices=place.devices,
        hosts=Figure(None, "hosts", reason="a topology does not say how many hosts serve it"),
        details={"topology": place.name, "chips": str(place.chips)},
        versions={
            **program.versions,
            "python": platform.python_version(),
            "os": platform.platform(),
            **compiled.versions,
        },
        numerics=records.Numerics(program.policy, program.in_force),
        workload=work,
        results={
            "compile_time": Figure(
                None, "s", reason="not on the chip's host; prediction.compile_time is this machine's"
            ),
            "peak_allocated": Figure(compiled.peak, "bytes", reason=no_peak),
        },
        prediction=_prediction(compiled),
        warnings=(OPTIMIZED.format(compiled.optimization),) if quick else (),
    )
