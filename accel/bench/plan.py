"""`accel bench resnet50 --plan`: memory of the benchmark's step before it runs, as a record.

The step is the one that `accel bench resnet50` times: same model, loss and optimizer. Owns the record of origin
`predicted`; the plan itself is `accel.plan`.
"""

from __future__ import annotations

import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from accel import __version__, chips, data, records
from accel.bench import _memory_plot
from accel.bench._options import Options, benchmark
from accel.errors import ArgumentError
from accel.plan import HEADROOM, Plan, plan
from accel.records import Figure, Label

NOT_RUN = "planned: nothing was run"
ASSUMED = (
    "the plan is of eager execution; kernels' own buffers and the fabric's are covered by the headroom of {:.0%} only"
)
BESIDE = "the gradients that lie beside DDP's buckets until a window ends"
UNPLACED = "the plan is of one of the devices, wherever the others are"
COMPILED = "{} is programmed through a compiler that fuses operations and keeps less: see --aot for its own figures"


class Planned(NamedTuple):
    """What a run of `--plan` found."""

    path: Path
    record: records.Record
    plain: Plan
    checkpointed: Plan


def run(
    options: Options,
    chip: str,
    out: str | Path,
    command: str,
    *,
    devices: int = 1,
    headroom: float = HEADROOM,
    picture: str | None = None,
) -> Planned:
    """Plan the step for `chip`, one of `devices` that train together, and write a record to the file or folder `out`.

    Raises `ArgumentError` for a chip that is not in the table, with the nearest names, and for options that have no
    meaning where nothing runs.
    """
    import torch
    from torch.nn.functional import cross_entropy

    from accel.bench import _train

    known = chips.get(chip)
    if options.epochs is not None or options.evaluate or options.compile or options.graphs:
        raise ArgumentError(
            "--plan runs nothing and plans eager steps: leave out --epochs, --evaluate, --compile and --cuda-graphs"
        )
    target = None if picture is None else _memory_plot.check(picture)
    started = datetime.now(timezone.utc)
    record_id = records.new_id(f"{options.model}-{known.name}-{options.precision}-plan", started)
    path = records.destination(out, record_id)
    dataset = data.parse(options.data, options.size, length=1, seed=options.seed)[0]

    def loss(model: Any, batch: int) -> torch.Tensor:
        images = torch.empty(batch, 3, dataset.size, dataset.size)
        labels = torch.zeros(batch, dtype=torch.int64)
        return cross_entropy(model(images).float(), labels, label_smoothing=_train.LABEL_SMOOTHING)

    def planned(checkpoint: bool) -> Plan:
        return plan(
            lambda: _train.build(options.model, dataset.size, checkpoint)(dataset.num_classes),
            loss,
            batch=options.batch,
            optimizer=lambda parameters: _train.sgd(parameters, 0.1, fused=True),
            precision=options.precision,
            accumulate=options.accumulate,
            devices=devices,
            chip=known.name,
            headroom=headroom,
        )

    plain, checkpointed = planned(False), planned(True)
    asked = checkpointed if options.checkpoint else plain
    if target is not None:
        title = f"{options.model}, batch {options.batch}, {options.precision}, on {known.name} (predicted)"
        lines = {"peak": asked.peak} | ({} if asked.usable is None else {"usable": asked.usable})
        _memory_plot.draw(asked.course, asked.allocator, target, title, lines)
    warnings = [ASSUMED.format(headroom)]
    if plain.allocator.name == "exact":
        warnings.append(COMPILED.format(known.name))
    record = _record(record_id, started, command, options, dataset, plain, checkpointed, tuple(warnings))
    return Planned(records.write(record, path), record, plain, checkpointed)


def _record(
    record_id: str,
    started: datetime,
    command: str,
    options: Options,
    dataset: data.ImageDataset,
    plain: Plan,
    checkpointed: Plan,
    warnings: tuple[str, ...],
) -> records.Record:
    import torch

    from accel.bench import _train

    asked = checkpointed if options.checkpoint else plain
    net = _train.build(options.model, dataset.size)
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in net(dataset.num_classes).parameters())
    return records.predicted(
        NOT_RUN,
        id=record_id,
        made=started,
        command=command,
        benchmark=benchmark(options.model),
        backend=records.BackendPart("none", "eager"),
        chip=Label(plain.chip),
        devices=plain.devices,
        hosts=Figure(1, "hosts") if plain.devices == 1 else Figure(None, "hosts", reason=UNPLACED),
        details={},
        versions={"accel": __version__, "torch": torch.__version__, "python": platform.python_version()},
        numerics=records.Numerics(options.precision, {}),
        workload=records.Workload(
            model=options.model,
            parameters=Figure(parameters, "parameters"),
            data=dataset.name,
            delivery=_train.SYNTHETIC,
            image_size=Figure(dataset.size, "px"),
            batch_per_device=Figure(options.batch, "images"),
            accumulate=Figure(options.accumulate, "micro-batches"),
            global_batch=Figure(options.batch * options.accumulate * plain.devices, "images"),
            optimizer=f"SGD, momentum {_train.MOMENTUM:g}, fused",
            seed=None,
        ),
        results={
            "peak_allocated": _bytes(asked.peak_allocated),
            "peak_reserved": _reserved(asked.peak_reserved),
        },
        plan=records.MemoryPlan(
            allocator=plain.allocator.name,
            capacity=_bytes(plain.capacity, "no source gives the chip's memory"),
            headroom=Figure(plain.headroom, "fraction"),
            plain=_step(plain),
            checkpointed=_step(checkpointed),
            saved_by_accumulation=_saved(plain),
        ),
        warnings=warnings,
    )


def _saved(found: Plan) -> Figure:
    saved = found.saved_by_accumulation
    if found.accumulate == 1:
        return _bytes(None, "one micro-batch: nothing to save")
    if saved < 0:
        return _bytes(None, f"nothing: it takes {-saved:,} bytes more, for {BESIDE}")
    return _bytes(saved)


def _step(found: Plan) -> records.PlannedStep:
    none = "not even a batch of 1 fits"
    return records.PlannedStep(
        parameters=_bytes(found.parameters),
        gradients=_bytes(found.gradients),
        optimizer=_bytes(found.optimizer),
        activations=_bytes(found.activations),
        workspace=_bytes(found.workspace),
        peak=_bytes(found.peak),
        peak_allocated=_bytes(found.peak_allocated),
        peak_reserved=_reserved(found.peak_reserved),
        fits=found.fits,
        largest_batch=Figure(found.largest_batch, "images", reason=None if found.largest_batch else none),
    )


def _bytes(value: int | None, why: str = "") -> Figure:
    return Figure(value, "bytes", reason=None if value is not None else why)


def _reserved(value: int | None) -> Figure:
    return _bytes(value, "this chip's allocator is not replayed")
