"""The `efficiency` part of a record: the step's work counted by tracing, and its share of the chip's dense peak."""

from __future__ import annotations

from typing import NamedTuple

from accel import flops
from accel.bench._options import Options
from accel.bench._train import build
from accel.chips import Recognition, utilisation
from accel.records import Efficiency, Figure, Label

_EMULATED = "the run was emulated, so its time is not the chip's"


class Counted(NamedTuple):
    """The part of the record, and a warning where the share cannot be true."""

    efficiency: Efficiency
    warning: str | None


def count(
    options: Options, classes: int, size: int, found: Recognition, arithmetic: str | None, rate: float, origin: str
) -> Counted:
    """Count the step that `options` ask for, at `rate` images/s of one device."""
    step = flops.trace(
        build(options.model, size), batch=options.batch, size=size, classes=classes, precision=options.precision
    )
    forward, training = step.tally("forward"), step.tally()
    achieved = rate * training.flops / step.batch
    used = utilisation(achieved, found.chip, arithmetic, found.reason)
    if origin == "emulated":
        used = used._replace(mfu=None, reason=used.reason or _EMULATED, warning=None)
    chip = Label(found.chip.name) if found.chip else Label(None, found.reason)
    in_force = Label(arithmetic) if arithmetic else Label(None, "the backend does not say")
    return Counted(
        Efficiency(
            chip=chip,
            arithmetic=in_force,
            macs_forward=Figure(forward.macs // step.batch, "MAC/image"),  # products are exact in the batch
            flops_forward=Figure(forward.flops // step.batch, "FLOP/image"),
            flops_training=Figure(training.flops // step.batch, "FLOP/image"),
            elements_training=Figure(training.elements / step.batch, "operations/image"),
            bytes_training=Figure(training.bytes / step.batch, "bytes/image"),
            achieved=Figure(achieved, "FLOP/s"),
            peak=Figure(used.peak, "FLOP/s", reason=None if used.peak else used.reason),
            mfu=Figure(used.mfu, "fraction", reason=None if used.mfu is not None else used.reason),
        ),
        used.warning,
    )
