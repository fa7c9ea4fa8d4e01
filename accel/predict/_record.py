"""A forecast as a record of the origin `predicted`, which `accel compare` keeps apart from measured ones."""

from __future__ import annotations

from datetime import datetime, timezone

from accel import __version__, records
from accel.bench._options import benchmark
from accel.predict._predict import Forecast
from accel.records import Figure, Label

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
    return records.predicted(
        _NOT_RUN,
        id=records.new_id(f"{forecast.model}-{forecast.chip.name}-{forecast.precision}-predicted", made),
        made=made,
        command=command,
        benchmark=benchmark(forecast.model),
        backend=records.BackendPart("none", "eager"),
        chip=Label(forecast.chip.name),
        devices=devices,
        hosts=Figure(1, "hosts"),
        details={records.CALIBRATION: calibration.set}
        | {f"predicted seconds of a step: {name}": f"{value:.4g}" for name, value in step._asdict().items()},
        versions={"accel": __version__},
        numerics=records.Numerics(forecast.precision, {}),
        workload=records.Workload(
            model=forecast.model,
            parameters=Figure(None, "parameters", reason=_NOT_RUN),
            data="synthetic",
            delivery="synthetic",
            image_size=Figure(forecast.size, "px"),
            batch_per_device=Figure(batch, "images"),
            accumulate=Figure(1, "micro-batches"),
            global_batch=Figure(batch * devices, "images"),
            optimizer="SGD with momentum",
            seed=None,
        ),
        results={
            "throughput": Figure(forecast.throughput, "images/s"),
            "throughput_per_device": Figure(forecast.throughput / devices, "images/s"),
            "step_time": Figure(step.seconds, "s"),
        },
        sources=tuple(dict.fromkeys(run.source for run in calibration.runs)),
        warnings=(basis, *forecast.notes),
    )
