"""`accel predict`: the step time of a model on a chip that is not at hand, and how wrong such predictions are."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import rich
import typer
from rich.text import Text

from accel.errors import ArgumentError

if TYPE_CHECKING:
    from accel.predict import Forecast


def predict(
    model: Annotated[str | None, typer.Argument(help="resnet50, resnet18 or vit_b_16.")] = None,
    chip: Annotated[str | None, typer.Option(help="A chip of the table, such as H100-SXM5 (see accel chips).")] = None,
    batch: Annotated[int, typer.Option(help="Images on one device.")] = 256,
    precision: Annotated[str, typer.Option(help="bf16, fp16 or tf32.")] = "bf16",
    devices: Annotated[int, typer.Option(help="Chips that train together; 1 to 8.")] = 1,
    calibration: Annotated[
        str | None, typer.Option(help="Published runs to calibrate on: lambda, mxnet or mlperf.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Also write a record to this folder or .json file.")] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="Print every published run beside its prediction, as Markdown.")
    ] = False,
) -> None:
    """Predict a training step on a chip that is not here, with the error that such predictions make."""
    if errors:
        if model is not None or chip is not None:
            raise ArgumentError("--errors is about all chips; give it without a model and without --chip")
        from accel.predict import error_tables

        sys.stdout.write(error_tables())
        return
    if model is None or chip is None:
        raise ArgumentError("predict needs a model and --chip, such as: accel predict resnet50 --chip H100-SXM5")
    from accel import predict as predicting
    from accel import records

    forecast = predicting.predict(
        model, chip, batch=batch, precision=precision, devices=devices, calibration=calibration
    )
    _show(forecast, rich.get_console())
    if out is not None:
        made = predicting.record(forecast, shlex.join(["accel", *sys.argv[1:]]))
        path = records.write(made, records.destination(out, made.id))
        rich.get_console().print(f"record: {path}", markup=False, highlight=False, soft_wrap=True)


def _show(forecast: Forecast, console: rich.console.Console) -> None:
    step, fitted = forecast.step, forecast.calibration
    shares = {
        "bound by the matrix units": step.matrix,
        "bound by the vector units": step.vector,
        "bound by memory": step.memory,
        "constant an image": step.constant,
        "exposed exchange": step.exchange,
    }
    parts = ", ".join(f"{name} {value / step.seconds:.0%}" for name, value in shares.items() if value)
    cards = f"{forecast.devices} x {forecast.chip.name}"
    kinds = ", ".join(sorted({str(run.chip) for run in fitted.runs}))
    matrix, memory, constant = fitted.parameters
    lines = [
        f"{forecast.model} on {cards}, {forecast.precision}, {forecast.batch} images a device",
        f"  {forecast.throughput:,.0f} images/s, step {step.seconds * 1e3:.4g} ms (predicted, not measured)",
        f"  of the step: {parts}",
        f"  error on chips left out of the calibration: median {forecast.median:.0%}, worst {forecast.worst:.0%}",
        f"  calibration {fitted.set!r}: {fitted.about}; {len(fitted.runs)} published runs of {kinds}",
        f"  fitted: {matrix:.0%} of the dense peak, {memory:.0%} of the bandwidth, {constant * 1e6:.0f} us an image",
        *(f"  note: {note}" for note in forecast.notes),
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
