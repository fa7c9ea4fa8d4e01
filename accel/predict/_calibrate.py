"""Calibration sets, the fit of the model's parameters to them, and the error on each chip when it is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel import chips, published
from accel.errors import ArgumentError
from accel.predict._model import Parameters, step
from accel.published import Run

ASSUMED_BATCH = 256  # images a device, for a run whose source does not print it
MODEL = "resnet50"  # of which there are published runs
_SMALL = 1e-3  # weight of the prior that keeps a parameter that the runs do not determine from running away
_START = (0.5, 0.7, 1e-4)


class Set(NamedTuple):
    """Runs that one fit is made to. `names` of the runs' sets; `devices` 1 fits to one-device runs and models the
    exchange, None fits to all and leaves the exchange inside the fitted terms; `constant` fits seconds an image.
    """

    name: str
    names: tuple[str, ...]
    devices: int | None
    constant: bool
    about: str


_SETS = MappingProxyType(
    {
        one.name: one
        for one in (
            Set("lambda", ("lambda",), 1, True, "one code base, PyTorch without fusion (Lambda's benchmark)"),
            Set("mxnet", ("mxnet",), None, False, "one code base, MXNet tuned by NVIDIA for MLPerf Training"),
            Set(
                "mlperf", ("mxnet", "mlperf"), None, False, "MLPerf Training, each vendor's own code: no one code base"
            ),
        )
    }
)


class Calibration(NamedTuple):
    """Fitted parameters, and the runs that they were fitted to."""

    set: str
    about: str
    arithmetic: str  # "tf32", or "fp16" for both 16-bit formats, which have one rate on every chip of the table
    parameters: Parameters
    runs: tuple[Run, ...]
    exchange: bool  # whether the exchange is modelled; else it is inside the fitted terms


class Miss(NamedTuple):
    """A published run and what is predicted for it from the other chips' runs; both in images/s of one device."""

    run: Run
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.run.per_device - 1


def sets() -> tuple[Set, ...]:
    """The calibration sets, the preferred one first."""
    return tuple(_SETS.values())


def arithmetic(precision: str) -> str:
    """The arithmetic whose runs a prediction in `precision` is calibrated on."""
    return "fp16" if precision == "bf16" else precision


@cache
def calibrate(name: str, precision: str, without: str | None = None) -> Calibration:
    """Fit to the set `name` in `precision`, leaving out the chip `without`. Raises `ArgumentError` for an unknown set,
    and where fewer than three chips have runs.
    """
    if name not in _SETS:
        raise ArgumentError(f"calibration is {name!r}; expected one of {', '.join(_SETS)}")
    chosen = _SETS[name]
    wanted = arithmetic(precision)
    fitted = tuple(
        run for run in members(chosen, wanted) if chosen.devices in {None, run.devices} and run.chip != without
    )
    kinds = sorted({str(run.chip) for run in fitted})
    if len(kinds) < 3:
        raise ArgumentError(
            f"precision is {precision!r}; the calibration {name!r} has runs of {len(kinds)} chips in it "
            f"({', '.join(kinds) or 'none'}), too few to fit three parameters: choose another precision or calibration"
        )
    parameters = _fit(fitted, chosen)
    return Calibration(name, chosen.about, wanted, parameters, fitted, chosen.devices is not None)


def misses(name: str, precision: str) -> tuple[Miss, ...]:
    """Every run of the set beside its prediction from a calibration without any run of its chip."""
    beside = members(_SETS[name], arithmetic(precision))
    return tuple(Miss(run, _rate(calibrate(name, precision, str(run.chip)), run)) for run in beside)


def members(chosen: Set, wanted: str | None = None) -> list[Run]:
    """The published runs of a set, of one arithmetic or of all."""
    runs = [run for run in published.runs(MODEL) if run.set in chosen.names]
    return [run for run in runs if wanted in {None, arithmetic(run.precision)}]


def _rate(calibration: Calibration, run: Run) -> float:
    """Predicted images/s of one device in the conditions of `run`."""
    batch = run.batch_per_device or ASSUMED_BATCH
    return batch / _seconds(calibration.parameters, run, calibration.exchange)


def _seconds(parameters: Parameters, run: Run, exchange: bool) -> float:
    chip = chips.get(str(run.chip))
    batch = run.batch_per_device or ASSUMED_BATCH
    return step(parameters, MODEL, chip, run.precision, batch, run.devices, exchange).seconds


def _fit(runs: Sequence[Run], chosen: Set) -> Parameters:
    """Least squares of the logarithm of measured over predicted step time, by Levenberg and Marquardt's method."""
    exchange = chosen.devices is not None
    free = 3 if chosen.constant else 2
    measured = np.array([(run.batch_per_device or ASSUMED_BATCH) / run.per_device for run in runs])

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        predicted = np.array([_seconds(_unfold(x), run, exchange) for run in runs])
        return np.concatenate([np.log(predicted / measured), _SMALL * (x - start)])

    matrix, memory, constant = _START
    start = np.array([np.log(matrix / (1 - matrix)), np.log(memory), np.log(constant)])[:free]
    return _unfold(_minimum(residuals, start))


def _unfold(x: NDArray[np.float64]) -> Parameters:
    """The share of the peak is between 0 and 1; the others are above 0."""
    constant = float(np.exp(x[2])) if len(x) > 2 else 0.0
    return Parameters(float(1 / (1 + np.exp(-x[0]))), float(np.exp(x[1])), constant)


def _minimum(
    residuals: Callable[[NDArray[np.float64]], NDArray[np.float64]], x: NDArray[np.float64]
) -> NDArray[np.float64]:
    damping, near = 1e-2, 1e-5
    r = residuals(x)
    for _ in range(100):
        jacobian = np.stack([(residuals(x + near * unit) - r) / near for unit in np.eye(len(x))], axis=1)
        move = np.linalg.solve(jacobian.T @ jacobian + damping * np.eye(len(x)), -jacobian.T @ r)
        after = residuals(x + move)
        if after @ after < r @ r:
            settled = float(np.abs(move).max()) < 1e-7
            x, r, damping = x + move, after, damping / 3
            if settled:
                break
        elif damping > 1e9:
            break
        else:
            damping *= 4
    return x
