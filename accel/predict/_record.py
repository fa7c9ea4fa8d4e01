"""A forecast as a record of the origin `predicted`, which `accel compare` keeps apart from measured ones."""

from __future__ import annotations

from datetime import datetime, timezone
from uuid import uuid4

from accel import __version__, records
from accel.predict._predict import Forecast
from accel.records import Curve, Figure, Label, Series

_NOT_RUN = "predicted: nothing was run"


def record(forecast: Forecast, command: str) -> records.Record:
    """The record of `forecast`; `command` is what made it. Every figure that only a run gives is None with a reason."""
    made = datetime.now(timezone.utc)
    devices, batch = forecast.devices, forecast.batch
    calibration, step = forecast.calibration, forecast.step
    basis = (
        f"predicted from the calibration {calibration.set!r} ({calibration.about}); on chips left out of it the error "
        f"is {forecast.median:.0%} in the median and {forecast.worst:.0%} at worst"
    )
    return records.Record(
        id=f"{forecast.model}-{forecast.chip.name}-{forecast.precision}-predicted-{made:%Y%m%dT%H%M%SZ}-{uuid4().hex[:6]}",
        time=f"{made:%Y-%m-%dT%H:%M:%SZ}",
        command=command,
        benchmark="resnet50",
        origin="predicted",
        backend=records.BackendPart("none", "eager"),
        hardware=records.Hardware(
            chip=Label(forecast.chip.name),
            devices=Figure(devices, "devices"),
            world_size=Figure(devices, "ranks"),
            hosts=Figure(1, "hosts"),
            details={f"predicted seconds of a step: {name}": f"{value:.4g}" for name, value in step._asdict().items()},
        ),
        versions={"accel": __version__},
        numerics=records.Numerics(forecast.precision, {}),
        workload=records.Workload(
            model=forecast.model,
            parameters=_unknown("parameters"),
            data="synthetic",
            delivery="synthetic",
            image_size=Figure(forecast.size, "px"),
            batch_per_device=Figure(batch, "images"),
            accumulate=Figure(1, "micro-batches"),
            global_batch=Figure(batch * devices, "images"),
            optimizer="SGD with momentum",
            seed=None,
        ),
        protocol=records.Protocol(
            steps=_unknown("steps"),
            repeats=_unknown("repeats"),
            warmup_steps=_unknown("steps"),
            clock=_NOT_RUN,
            loader_workers=_unknown("workers"),
            threads=_unknown("threads"),
            threads_source=_NOT_RUN,
        ),
        results=records.Results(
            throughput=Figure(forecast.throughput, "images/s"),
            throughput_per_device=Figure(forecast.throughput / devices, "images/s"),
            throughput_repeats=Series((), "images/s", reason=_NOT_RUN),
            step_time=Figure(step.seconds, "s"),
            step_time_p10=_unknown("s"),
            step_time_p90=_unknown("s"),
            step_times=Series((), "s", reason=_NOT_RUN),
            first_step_time=_unknown("s"),
            compile_time=_unknown("s"),
            loss_curve=Curve((), "nats", reason=_NOT_RUN),
            accuracy=_unknown("fraction"),
            peak_allocated=_unknown("bytes"),
            peak_reserved=_unknown("bytes"),
            compiles=_unknown("graphs"),
            fallbacks=_unknown("operations"),
        ),
        sources=tuple(dict.fromkeys(run.source for run in calibration.runs)),
        warnings=(basis, *forecast.notes),
    )


def _unknown(unit: str) -> Figure:
    return Figure(None, unit, reason=_NOT_RUN)
