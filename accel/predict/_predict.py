"""`predict`: the step time of a model on a chip of the table, with what it rests on and how wrong it may be."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from accel import chips
from accel.chips import Chip
from accel.errors import ArgumentError
from accel.precision import checked_policy
from accel.predict import _calibrate, _model
from accel.predict._calibrate import Calibration
from accel.predict._model import Prediction

MODELS = ("resnet50", "resnet18", "vit_b_16")


@dataclass(frozen=True)
class Forecast:
    """A predicted training step. `batch` is images a device; `median` and `worst` are relative errors of the
    calibration on chips left out of it; `notes` say what a reader should know before trusting it.
    """

    model: str
    size: int
    chip: Chip
    precision: str
    batch: int
    devices: int
    step: Prediction
    calibration: Calibration
    median: float
    worst: float
    notes: tuple[str, ...]

    @property
    def throughput(self) -> float:
        """Images/s over all devices."""
        return self.batch * self.devices / self.step.seconds


def predict(
    model: str,
    chip: str,
    *,
    batch: int = 256,
    precision: str = "bf16",
    devices: int = 1,
    size: int = 224,
    calibration: str | None = None,
) -> Forecast:
    """Predict a training step of `model` on `devices` of `chip`, `batch` images of `size` x `size` on each.

    `calibration` is a set of published runs, by default the first with runs of a chip of the same vendor. Raises
    `ArgumentError` for an unknown model, chip (suggesting the nearest), precision or calibration, a number below 1, and
    for what the chip table or the published runs do not cover.
    """
    if model not in MODELS:
        raise ArgumentError(f"model is {model!r}; expected one of {', '.join(MODELS)}")
    for name, value in (("batch", batch), ("devices", devices), ("size", size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name} is {value!r}; expected an integer from 1")
    found, policy = chips.get(chip), checked_policy(precision)
    _model.needed(found, policy)  # before the fit, which takes seconds
    fitted = _calibrate.calibrate(calibration or _default(found), policy)
    step = _model.step(fitted.parameters, model, found, policy, batch, devices, fitted.exchange, size)
    errors = sorted(abs(miss.error) for miss in _calibrate.misses(fitted.set, policy))
    return Forecast(
        model=model,
        size=size,
        chip=found,
        precision=policy,
        batch=batch,
        devices=devices,
        step=step,
        calibration=fitted,
        median=statistics.median(errors),
        worst=errors[-1],
        notes=tuple(_notes(model, size, found, devices, fitted)),
    )


def _default(chip: Chip) -> str:
    for one in _calibrate.sets():
        makers = {chips.get(str(run.chip)).vendor for run in _calibrate.members(one)}
        if chip.vendor in makers:
            return one.name
    raise ArgumentError(
        f"chip {chip.name!r}: no published run of a {chip.vendor} chip to calibrate on; name a set with --calibration"
    )


def _notes(model: str, size: int, chip: Chip, devices: int, fitted: Calibration) -> list[str]:
    notes = []
    if model != _calibrate.MODEL or size != 224:
        notes.append("calibrated on ResNet-50 at 224 px only: for other work the error is not known")
    if chip.name in {run.chip for run in fitted.runs}:
        notes.append(f"{chip.name} is among the calibration's own chips, so the error here is that of the fit")
    elif chip.vendor not in {chips.get(str(run.chip)).vendor for run in fitted.runs}:
        notes.append(f"the calibration has no {chip.vendor} chip: its error is stated for other vendors' chips")
    if not fitted.exchange and devices > 1:
        notes.append(
            "the gradients' exchange is inside the fitted terms, as the calibration's runs were on several devices: "
            f"the figure for {devices} devices is that of one times {devices}"
        )
    weak = [
        f"{name} {value.value:g} {value.unit}"
        for name, value in (("memory bandwidth", chip.bandwidth), *((f"{k} peak", v) for k, v in chip.dense.items()))
        if value is not None and value.confidence == "low"
    ]
    if weak:
        notes.append(f"figures of low confidence in the chip table: {', '.join(weak)}")
    return notes
