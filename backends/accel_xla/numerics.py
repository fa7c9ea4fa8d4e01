"""The switch that decides how XLA multiplies fp32: passes in bf16 on a TPU, or enough of them for IEEE-like results.

`torch_xla.backends.set_mat_mul_precision` covers matrix products and convolutions: "highest" is six bf16 passes on a
TPU (about 22 bits), "default" one (torch_xla 2.9). Other clients compute fp32 in fp32 under both.
"""

from __future__ import annotations

import logging

import torch
from torch import nn
from torch_xla import backends
from torch_xla import runtime as xr

from accel.errors import UnsupportedError
from accel.numerics import Numerics, set_deterministic
from accel_xla import batchnorm

log = logging.getLogger("accel")

NO_FP16 = "TPUs have no float16 units; use bf16, which needs no loss scaling"
AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16}
# Precisions that sessions of this process had: torch_xla 2.9 looks compiled graphs up by their operations alone.
_used: set[str] = set()


class XlaNumerics(Numerics):
    """The precision of matrix products, and torch's determinism."""

    device_type = "xla"
    not_deterministic = (
        "torch's switch does not reach XLA: one graph on one kind of chip repeats its numbers, and another graph, "
        "version or number of devices may not"
    )
    widened = "AutocastXLA", ("softmax.int", "log_softmax.int", "layer_norm", "group_norm")

    def snapshot(self) -> tuple[str, bool]:
        return backends.get_mat_mul_precision(), torch.are_deterministic_algorithms_enabled()

    def set(self, policy: str, deterministic: bool) -> None:
        if policy not in AUTOCAST:
            raise UnsupportedError(f"precision {policy!r} is unsupported on xla: {NO_FP16}")
        precision = "default" if policy == "tf32" else "highest"
        if _used - {precision}:
            log.warning(
                "precision %r sets matrix products to %r, but this process has run under %r and torch_xla finds graphs "
                "compiled then again: start a new process for figures that you compare",
                policy, precision, ", ".join(sorted(_used - {precision})),
            )  # fmt: skip
        _used.add(precision)
        self.put_back((precision, deterministic))

    def put_back(self, found: tuple[str, bool]) -> None:
        precision, deterministic = found
        _set(precision)
        set_deterministic(deterministic)

    def read(self) -> dict[str, str]:
        return {
            "mat_mul_precision": backends.get_mat_mul_precision(),
            "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        }

    def autocast_dtype(self, policy: str) -> torch.dtype | None:
        return AUTOCAST[policy]

    def adapt(self, model: nn.Module) -> None:
        batchnorm.correct(model)

    def arithmetic(self) -> str | None:
        if xr.device_type() != "TPU":
            return "fp32"
        return {"highest": "fp32", "default": "bf16"}.get(backends.get_mat_mul_precision())


def _set(precision: str) -> None:
    """Set the precision without torch_xla's blanket warning against setting it twice; `set` says what is true."""
    if backends.get_mat_mul_precision() == precision:
        return
    theirs = logging.getLogger(backends.__name__)
    before = theirs.level
    theirs.setLevel(logging.ERROR)
    try:
        backends.set_mat_mul_precision(precision)
    finally:
        theirs.setLevel(before)
