"""`accel bench resnet50|vit_b_16`: real training steps of a model through a session, timed, and written as one record.

Owns the order of a run and the record. Options are `_options`, training is `_train`, timing `_timing`, and
what the record says of the machine `_environment`; what is measured beside the timed steps is `_split`, `_goal`,
`_disturbance`, `_overlap` and `_input`.
"""

from __future__ import annotations

import math
import time
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
    from accel.bench._goal import Epochs, Evaluated
    from accel.bench._timing import RankTiming, Summary
    from accel.bench._train import Trainer
    from accel.session import Session

_POINTS = 50  # of the loss curve at most; each is one host read with the clock stopped


class Schedule(NamedTuple):
    """Optimizer steps of a run: warm-up, then `repeats` times `steps`; `epoch` of them are a pass over the data."""

    warmup: int
    steps: int
    repeats: int
    epoch: int

    @property
    def total(self) -> int:
        return self.warmup + self.steps * self.repeats


class Measured(NamedTuple):
    """What the steps of a run gave: times of each rank, the loss curve (a loss that is not finite is None), figures."""

    timings: list[RankTiming]
    points: list[tuple[int, float | None]]
    figures: dict[str, records.Figure]
    warnings: list[str]
    disturbance: records.Disturbance


def run(
    options: Options, out: str | Path, command: str, picture: str | None = None
) -> tuple[Path, records.Record] | None:
    """Train, time and write a record to the file or folder `out`; path and record on rank 0, None on other ranks.

    `picture`: a file for the plot of memory over one further step.

    Raises `ArgumentError` or `DataError` for what cannot be run or written, before anything runs.
    """
    from accel import data, init, rendezvous
    from accel.bench import _efficiency, _environment, _goal, _input, _memory_plot, _overlap, _timing, _train
    from accel.precision import checked_policy

    started = datetime.now(timezone.utc)
    checked_policy(options.precision)
    target = None if picture is None else _memory_plot.check(picture)
    if picture is not None and (options.compile or options.graphs):
        raise ArgumentError("--memory-plot records eager steps: leave out --compile and --cuda-graphs")
    place = rendezvous.read()
    before_data = time.perf_counter()
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

        def load(workers: int, pinned: bool | None) -> Any:
            return _train.loader(session, train, options.batch, workers, pinned)

        def evaluate() -> Evaluated:
            return _train.evaluate(session, trainer.model, held_out, options.batch, options.workers)

        loader = load(options.workers, options.pin)
        schedule = _schedule(options, session, loader)
        trainer = _train.Trainer(session, options, train, loader, schedule.total)
        epochs = _goal.Epochs(before_data, schedule.epoch, None if options.target is None else evaluate)
        measured = _timed(session, trainer, schedule, epochs, fixed=options.epochs is not None)
        accuracy = epochs.passed.accuracies[-1] if epochs.passed.accuracies else None
        if options.evaluate and accuracy is None:
            accuracy = evaluate().accuracy
        passed = [_goal.Passed(*rank) for rank in session.backend.collective.all_gather_object(list(epochs.passed))]
        machine = _environment.gather(session, trainer.conditions)
        counted = _environment.counted(session, counters)
        counted |= _overlap.measure(session, trainer, measured.figures["reduce_time"])
        advice = None
        if options.tune_input and train.name == "synthetic":
            advice = _input.unknown("synthetic data is one batch that stays on the device")
        elif options.tune_input:
            advice = _input.tune(session, trainer, load)
        if target is not None:
            _plot(session, trainer, options, target)
        if not session.is_main:
            return None
        work = _train.workload(trainer, train, options)
        summary = _timing.summarize(measured.timings)
        used = _efficiency.count(
            options,
            train.num_classes,
            train.size,
            machine.recognition,
            session.backend.precision.arithmetic(),
            summary.throughput / session.world_size,
            session.backend.origin,
        )
        goal = None
        if train.name != "synthetic":
            images = len(loader) * options.batch * session.world_size  # short last batches are dropped
            finite = all(value is not None for _, value in measured.points)
            goal = _goal.goal(passed, images, options.target, summary.throughput, finite)
        record = _record(
            record_id,
            started,
            command,
            options,
            session,
            machine,
            measured._replace(figures=measured.figures | counted),
            work,
            schedule,
            summary,
            used,
            accuracy,
            goal,
            advice,
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
    batches = min(session.backend.collective.all_gather_object(len(loader)))
    epoch = math.ceil(batches / options.accumulate)
    if options.epochs is None:
        return Schedule(options.warmup, options.steps or 10, options.repeats, epoch)
    total = options.epochs * epoch
    steps = (total - options.warmup) // options.repeats
    if steps < 1:
        raise ArgumentError(
            f"epochs is {options.epochs}, which gives {total} optimizer steps; expected more than {options.warmup} "
            f"warm-up steps and {options.repeats} repeats: raise epochs, or lower batch, warmup or repeats"
        )
    return Schedule(total - steps * options.repeats, steps, options.repeats, epoch)


def _timed(session: Session, trainer: Trainer, schedule: Schedule, epochs: Epochs, fixed: bool) -> Measured:
    """Train and time the steps; `fixed`: their number must stay, even where the step time is not still yet."""
    from accel.bench import _disturbance, _split, _timing

    every = math.ceil(schedule.total / _POINTS)
    meter = session.meter()
    points: list[tuple[int, float | None]] = []
    done = 0
    phases, energy = _split.Phases(session.backend.device), _split.EnergyMeter(session)
    watcher, waits = _disturbance.Watcher(session), _split.DataWaits(session)
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
        watcher.ask()
        with energy.aside():
            epochs.after(done)

    def start() -> None:
        session.barrier()
        energy.start()
        watcher.start()
        waits.start()

    with progress:
        bar = progress.add_task("warm-up", total=schedule.total)
        epochs.begin()
        mine = _timing.measure(
            lambda: next(windows),
            session.backend.device,
            steps=schedule.steps,
            repeats=schedule.repeats,
            warmup=schedule.warmup,
            barrier=start,
            any_rank=session.any,
            between=between,
            settle=0 if fixed else _timing.SETTLE,
        )
    joules = energy.stop(sum(map(sum, mine.images)))
    disturbance = watcher.figures()
    share = waits.stop(sum(map(sum, mine.seconds)))
    windows.close()
    figures, stragglers = _split.figures(session, phases, trainer.parameters)
    gathered = session.backend.collective.all_gather_object(mine._asdict())
    timings = [_timing.RankTiming(**timing) for timing in gathered]
    return Measured(timings, points, {**figures, "energy": joules, "data_share": share}, stragglers, disturbance)


def _record(
    record_id: str,
    started: datetime,
    command: str,
    options: Options,
    session: Session,
    machine: Any,
    measured: Measured,
    work: records.Workload,
    schedule: Schedule,
    summary: Summary,
    used: Counted,
    accuracy: float | None,
    goal: records.Goal | None,
    advice: records.InputAdvice | None,
) -> records.Record:
    from accel.bench import _timing

    Figure = records.Figure  # noqa: N806 - a type
    warnings = [*summary.warnings, *measured.warnings, *machine.warnings]
    if used.warning:
        warnings.append(used.warning)
    points = measured.points
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
            **measured.figures,
        ),
        efficiency=used.efficiency,
        goal=goal,
        input=advice,
        disturbance=measured.disturbance,
        warnings=tuple(warnings),
    )


def _or_reason(value: float | None, unit: str, reason: str) -> records.Figure:
    return records.Figure(value, unit, reason=None if value is not None else reason)
