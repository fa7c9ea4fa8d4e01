"""Model FLOPs utilisation: work counted over the dense peak of the arithmetic in force, with its denominator."""

from __future__ import annotations

import math
from typing import NamedTuple

from accel.chips._table import Chip
from accel.errors import ArgumentError

_WARN_ABOVE = 1.0


class Utilisation(NamedTuple):
    """`mfu` as a fraction of `peak` (FLOP/s of one device), or None and why; `warning` where it cannot be true."""

    mfu: float | None
    peak: float | None
    reason: str | None
    warning: str | None


def utilisation(flops: float, chip: Chip | None, arithmetic: str | None, why_no_chip: str | None = None) -> Utilisation:
    """Utilisation of one device that does `flops` FLOP/s of the model's work.

    `arithmetic` is what matrix products are computed in, as read back from the backend ("fp32", "tf32", "bf16",
    "fp16"), or None where that is not known. Sparse peaks are never used. Raises `ArgumentError` for a rate that is
    negative or not finite.
    """
    if not math.isfinite(flops) or flops < 0:
        raise ArgumentError(f"flops is {flops}; expected the FLOP/s of one device, a finite number from 0")
    if chip is None:
        return Utilisation(None, None, why_no_chip or "the chip is not known", None)
    if arithmetic is None:
        return Utilisation(None, None, "the backend does not say in which arithmetic matrix products run", None)
    peak = chip.peak(arithmetic)
    if peak is None:
        return Utilisation(None, None, f"no source gives the dense {arithmetic} peak of {chip.name}", None)
    mfu = flops / peak
    warning = None
    if mfu > _WARN_ABOVE:
        warning = (
            f"MFU is {mfu:.0%}, above the dense {arithmetic} peak of {chip.name}, {peak / 1e12:,.4g} TFLOP/s a device: "
            "the time, the chip or the arithmetic is not what the record says"
        )
    return Utilisation(mfu, peak, None, warning)
