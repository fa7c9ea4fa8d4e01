"""The model of a step: each operation takes the longest of its matrix, vector and memory time; then the exchange.

Matrix time is FLOPs over the chip's dense peak times a fitted share; memory time is bytes over the bandwidth times a
fitted share; vector time is element operations over the ordinary units' peak, where the table has it. A constant for
each image stands for what does not shrink with the chip: input, host and waiting.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel import flops, models
from accel.chips import Chip
from accel.errors import ArgumentError

GRADIENT_BYTES = 4  # fp32
BUCKET = 25 * 2**20  # bytes; DistributedDataParallel's bucket_cap_mb: the last one has no backward left to hide behind
# Start of an all-reduce and each of its steps over NVLink, "Simple" protocol: NVIDIA/nccl src/graph/tuning.cc, baseLat
# and hwLat of the ring. Other fabrics publish none; at a hundred megabytes it is a tenth of the time or less.
START, HOP = 8.4e-6, 3.4e-6
# Where no measured bus bandwidth is published for a chip: that of 8 A100 over its links' one-way bandwidth, 232.5/300
# (https://github.com/NVIDIA/nccl-tests/issues/175).
LINK_SHARE = 0.775
MEASURED_BUS = "all-reduce bus bandwidth of 8 chips, measured"
MOST_DEVICES = 8  # the table has links inside a node only

_SMALL = (2, 4)  # images; BatchNorm needs more than one
_TRACED = {"fp32": "fp32", "tf32": "fp32", "bf16": "fp16", "fp16": "fp16"}  # what decides the bytes


class Parameters(NamedTuple):
    """What is fitted: shares of the peak and of the bandwidth, and seconds an image.

    `memory` above 1 means that a code base fuses operations, so that it moves less than each operation by itself would.
    """

    matrix: float
    memory: float
    constant: float


class Prediction(NamedTuple):
    """Seconds of one step on one device, by what bounds the operations, and the exposed exchange."""

    matrix: float
    vector: float
    memory: float
    constant: float
    exchange: float

    @property
    def seconds(self) -> float:
        return sum(self)


class Costs(NamedTuple):
    """FLOPs, element operations and bytes by operation, which of them are backward's, and trainable parameters."""

    flops: NDArray[np.float64]
    elements: NDArray[np.float64]
    bytes: NDArray[np.float64]
    backward: NDArray[np.bool_]
    parameters: int


def costs(model: str, traced: str, batch: int, size: int) -> Costs:
    """Costs of a step by operation: each is a constant and a share for each image, so two small traces give any."""
    low, high = (_traced(model, traced, images, size) for images in _SMALL)
    share = (batch - _SMALL[0]) / (_SMALL[1] - _SMALL[0])
    columns = [a + share * (b - a) for a, b in zip(low[:3], high[:3], strict=True)]
    return Costs(columns[0], columns[1], columns[2], low.backward, low.parameters)


@cache
def _traced(model: str, traced: str, batch: int, size: int) -> Costs:
    step = flops.trace(getattr(models, model), batch=batch, size=size, precision=traced)
    columns = np.array([(one.flops, one.elements, one.bytes) for one in step.operations], dtype=np.float64).T
    backward = np.array([one.phase == "backward" for one in step.operations])
    return Costs(columns[0], columns[1], columns[2], backward, step.parameters)


def step(
    parameters: Parameters,
    model: str,
    chip: Chip,
    precision: str,
    batch: int,
    devices: int = 1,
    exchange: bool = True,
    size: int = 224,
) -> Prediction:
    """Predict one optimizer step at `batch` images a device. `exchange` False leaves the all-reduce out, for
    calibrations in whose terms it is. Raises `ArgumentError` for what the chip table does not know.
    """
    peak, bandwidth = needed(chip, precision)
    cost = costs(model, _TRACED[precision], batch, size)
    matrix = cost.flops / (peak * parameters.matrix)
    memory = cost.bytes / (bandwidth * parameters.memory)
    rate = _vector(chip)
    vector = cost.elements / rate if rate else np.zeros_like(matrix)
    longest = np.maximum(np.maximum(matrix, vector), memory)
    of_matrix = longest[longest == matrix].sum()
    of_vector = longest[(longest == vector) & (longest > matrix)].sum()
    hidden = float(longest[cost.backward].sum())
    exposed = _exposed(chip, cost.parameters * GRADIENT_BYTES, devices, hidden) if exchange else 0.0
    return Prediction(
        matrix=float(of_matrix),
        vector=float(of_vector),
        memory=float(longest.sum() - of_matrix - of_vector),
        constant=parameters.constant * batch,
        exchange=exposed,
    )


def needed(chip: Chip, precision: str) -> tuple[float, float]:
    """Peak and bandwidth of the whole chip."""
    peak = chip.dense.get(precision)
    if peak is None:
        has = ", ".join(chip.dense) or "none"
        raise ArgumentError(
            f"precision is {precision!r}, but no source gives its dense peak on {chip.name}; there is {has}"
        )
    if chip.bandwidth is None:
        raise ArgumentError(f"chip {chip.name!r} has no memory bandwidth in the table, which a prediction needs")
    return peak.plain, chip.bandwidth.plain


def _vector(chip: Chip) -> float | None:
    """Element operations a second outside the matrix units; None where no source gives it."""
    value = chip.other.get("vector unit, fp16") or chip.dense.get("fp32")
    return None if value is None else value.plain


def _exposed(chip: Chip, size: float, devices: int, backward: float) -> float:
    """Seconds of the gradients' all-reduce that backward does not hide: at least that of the last bucket."""
    if devices == 1:
        return 0.0
    if devices > MOST_DEVICES:
        raise ArgumentError(f"devices is {devices}; the chip table has the links inside a node only, expected 1 to 8")
    last = min(size, BUCKET)
    whole = _all_reduce(chip, size, devices)
    return max(_all_reduce(chip, last, devices), whole - backward * (1 - last / size))


def _all_reduce(chip: Chip, size: float, devices: int) -> float:
    """Ring all-reduce of `size` bytes: 2 (n - 1) steps, 2 (n - 1) / n of the buffer a device."""
    measured = chip.other.get(MEASURED_BUS)
    if measured is not None:
        rate = measured.plain
    elif chip.link is not None:
        rate = LINK_SHARE * chip.link.plain / 2
    else:
        raise ArgumentError(f"chip {chip.name!r} has no link to other chips in the table; predict it with 1 device")
    steps = 2 * (devices - 1)
    return START + steps * HOP + steps / devices * size / rate
