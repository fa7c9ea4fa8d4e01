"""`accel bench resnet50|vit_b_16`: real training steps of a model through a session, timed, and written as one record.

Owns the order of a run and the record. Options are `_options`, training is `_train`, timing `_timing`, and
what the record says of the machine `_environment`.
"""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from accel import records
from accel.bench._options import Options, benchmark
from accel.errors import ArgumentError

if TYPE_CHECKING:
    from accel.bench._efficiency import Counted
    from accel.bench._timing import RankTiming, Summary
    from accel.bench._train import Trainer
    from accel.session import Session

_POINTS = 50  # of the loss curve at most; each is one host read with the clock stopped


class Schedule(NamedTuple):
    """Optimizer steps of a run: warm-up, then `repeats` times `steps`."""

    warmup: int
    steps: int
    repeats: int

    @property
    def total(self) -> int:
        return self.warmup + self.steps * self.repeats


def run(
    options: Options, out: str | Path, command: str, picture: str | None = None
) -> tuple[Path, records.Record] | None:
    """Train, time and write a record to the file or folder `out`; path and record on rank 0, None on other ranks.

    `picture`: a file for the plot of memory over one further step.

    Raises `ArgumentError` or `DataError` for what cannot be run or written, before anything runs.
    """
    from accel import data, init, rendezvous
    from accel.bench import _efficiency, _environment, _memory_plot, _timing, _train
    from accel.precision import checked_policy

    started = datetime.now(timezone.utc)
    checked_policy(options.precision)
    target = None if picture is None else _memory_plot.check(picture)
    if picture is not None and (options.compile or options.graphs):
        raise ArgumentError("--memory-plot records eager steps: leave out --compile and --cuda-graphs")
    place = rendezvous.read()
    train, held_out = data.parse(options.data, options.size, length=options.batch * place.world_size, seed=options.seed)
    path = Path()
    record_id = records.new_id(f"{options.model}-{options.precision}", started)
    if place.rank == 0:
        path = records.destination(out, record_id)
    with init(precision=options.precision, accumulate=options.accumulate, seed=options.seed) as session:
        if target is not None:
            session.backend.capabilities().require("memory.course")
        session.backend.memory.reset_peak()
        counters = session.backend.device.counters()
        loader = _train.loader(session, train, options.batch, options.workers)
        schedule = _schedule(options, session, loader)
        trainer = _train.Trainer(session, options, train, loader, schedule.total)
        timings, points, extra, stragglers = _timed(session, trainer, schedule)
        accuracy = None
        if options.evaluate:
            accuracy = _train.evaluate(session, trainer.model, held_out, options.batch, options.workers)
        machine = _environment.gather(session, trainer.conditions)
        counted = _environment.counted(session, counters)
        if target is not None:
            _plot(session, trainer, options, target)
        if not session.is_main:
            return None
        work = _train.workload(trainer, train, options)
        summary = _timing.summarize(timings)
        used = _efficiency.count(
            options,
            train.num_classes,
            train.size,
            machine.recognition,
            session.backend.precision.arithmetic(),
            summary.throughput / session.world_size,
            session.backend.origin,
        )
        record = _record(
            record_id,
            started,
            command,
            options,
            session,
            machine,
            counted | extra,
            stragglers,
            work,
            schedule,
            summary,
            used,
            points,
            accuracy,
        )
        return records.write(record, path), record


def _plot(session: Session, trainer: Trainer, options: Options, target: Path) -> None:
    """Draw the memory of one further step of this rank 0; every rank takes part in it."""
    from accel.bench import _memory_plot

    course, peak = trainer.course()
    if session.is_main:
        title = f"{options.model}, batch {options.batch}, {options.precision}, on {session.backend.name}"
        lines = {} if peak is None else {"peak of the device": peak}
        _memory_plot.draw(course, session.backend.memory.allocator, target, title, lines)


def _schedule(options: Options, session: Session, loader: Any) -> Schedule:
    if options.epochs is None:
        return Schedule(options.warmup, options.steps or 10, options.repeats)
    batches = min(session.backend.collective.all_gather_object(len(loader)))
    total = options.epochs * math.ceil(batches / options.accumulate)
    steps = (total - options.warmup) // options.repeats
    if steps < 1:
        raise ArgumentError(
            f"epochs is {options.epochs}, which gives {total} optimizer steps; expected more than {options.warmup} "
            f"warm-up steps and {options.repeats} repeats: raise epochs, or lower batch, warmup or repeats"
        )
    return Schedule(total - steps * options.repeats, steps, options.repeats)


def _timed(
    session: Session, trainer: Trainer, schedule: Schedule
) -> tuple[list[RankTiming], list[tuple[int, float | None]], dict[str, records.Figure], list[str]]:
    """What each rank measured, the loss curve (a loss that is not finite is None), phases and energy, stragglers."""
    from accel.bench import _split, _timing

    every = math.ceil(schedule.total / _POINTS)
    meter = session.meter()
    points: list[tuple[int, float | None]] = []
    done = 0
    phases, energy = _split.Phases(session.backend.device), _split.EnergyMeter(session)
    windows = trainer.windows(meter, phases)
    # Drawn only between steps, when the clock stands: a thread that redraws would take CPU from the steps.
    console = Console(stderr=True)
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*parts, console=console, transient=True, auto_refresh=False, disable=not session.is_main)

    def between() -> None:
        nonlocal done
        done += 1
        phases.on = session.backend.kind == "eager" and done < schedule.warmup
        if done % every == 0 or done == schedule.total:
            loss = meter.read(reset=True)["loss"]
            points.append((done, loss if math.isfinite(loss) else None))
        if session.is_main:
            phase = "warm-up" if done <= schedule.warmup else "timed"
            loss_now = f"  loss {points[-1][1]:.3f}" if points and points[-1][1] is not None else ""
            progress.update(bar, completed=done, description=f"{phase}{loss_now}", refresh=True)

    def start() -> None:
        session.barrier()
        energy.start()

    with progress:
        bar = progress.add_task("warm-up", total=schedule.total)
        mine = _timing.measure(
            lambda: next(windows),
            session.backend.device,
            steps=schedule.steps,
            repeats=schedule.repeats,
            warmup=schedule.warmup,
            barrier=start,
            any_rank=session.any,
            between=between,
        )
    joules = energy.stop(sum(map(sum, mine.images)))
    windows.close()
    figures, stragglers = _split.figures(session, phases, trainer.parameters)
    gathered = session.backend.collective.all_gather_object(mine._asdict())
    timings = [_timing.RankTiming(**timing) for timing in gathered]
    return timings, points, {**figures, "energy": joules}, stragglers


def _record(
    record_id: str,
    started: datetime,
    command: str,
    options: Options,
    session: Session,
    machine: Any,
    figures: dict[str, records.Figure],
    stragglers: list[str],
    work: records.Workload,
    schedule: Schedule,
    summary: Summary,
    used: Counted,
    points: list[tuple[int, float | None]],
    accuracy: float | None,
) -> records.Record:
    from accel.bench import _timing

    Figure = records.Figure  # noqa: N806 - a type
    warnings = [*summary.warnings, *stragglers, *machine.warnings]
    if used.warning:
        warnings.append(used.warning)
    lost = [step for step, value in points if value is None]
    if lost:
        warnings.append(
            f"the training loss was not finite at {len(lost)} of {len(points)} points, first at step {lost[0]}"
        )
    return records.Record(
        id=record_id,
        time=f"{started:%Y-%m-%dT%H:%M:%SZ}",
        command=command,
        benchmark=benchmark(options.model),
        origin=session.backend.origin,
        backend=records.BackendPart(session.backend.name, session.backend.kind),
        hardware=machine.hardware,
        versions=machine.versions,
        numerics=machine.numerics,
        workload=work,
        protocol=records.Protocol(
            steps=Figure(schedule.steps, "steps"),
            repeats=Figure(schedule.repeats, "repeats"),
            warmup_steps=Figure(summary.warmup_steps, "steps"),
            clock=_timing.CLOCK,
            loader_workers=Figure(options.workers, "workers"),
            threads=Figure(session.threads.count, "threads"),
            threads_source=session.threads.source,
        ),
        results=records.Results(
            throughput=Figure(summary.throughput, "images/s"),
            throughput_per_device=Figure(summary.throughput / session.world_size, "images/s"),
            throughput_repeats=records.Series(tuple(summary.throughput_repeats), "images/s"),
            step_time=Figure(summary.step_time, "s"),
            step_time_p10=Figure(summary.step_time_p10, "s"),
            step_time_p90=Figure(summary.step_time_p90, "s"),
            step_times=records.Series(tuple(summary.step_times), "s"),
            first_step_time=Figure(summary.first_step_time, "s"),
            compile_time=_or_reason(summary.compile_time, "s", "the device counted no compilation"),
            loss_curve=records.Curve(tuple(points), "nats"),
            accuracy=_or_reason(accuracy, "fraction", "not evaluated; run with --evaluate"),
            peak_allocated=machine.peak_allocated,
            peak_reserved=machine.peak_reserved,
            **figures,
        ),
        efficiency=used.efficiency,
        warnings=tuple(warnings),
    )


def _or_reason(value: float | None, unit: str, reason: str) -> records.Figure:
    return records.Figure(value, unit, reason=None if value is not None else reason)
