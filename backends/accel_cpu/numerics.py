"""The switches that decide how a CPU computes in fp32: oneDNN may use TF32 or bf16 units where the processor has them.

`torch.backends.mkldnn.{matmul,conv,rnn}.fp32_precision` take "ieee", "tf32", "bf16" or "none" (= inherit) since torch
2.9.
"""

from __future__ import annotations

import torch

from accel.numerics import Numerics, set_deterministic

UNITS = ("matmul", "conv", "rnn")
AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class CpuNumerics(Numerics):
    """oneDNN's fp32 precision by unit, and torch's determinism."""

    device_type = "cpu"
    not_deterministic = "another number of threads or another processor sums in another order"
    widened = "AutocastCPU", ("softmax.int", "log_softmax.int", "layer_norm", "group_norm")

    def snapshot(self) -> tuple[dict[str, str], bool]:
        precisions = {unit: getattr(torch.backends.mkldnn, unit).fp32_precision for unit in UNITS}
        return precisions, torch.are_deterministic_algorithms_enabled()

    def set(self, policy: str, deterministic: bool) -> None:
        # "tf32" means the chip's fast fp32; where oneDNN finds no such unit the switch leaves IEEE arithmetic in place.
        precision = "tf32" if policy == "tf32" else "ieee"
        self.put_back((dict.fromkeys(UNITS, precision), deterministic))

    def put_back(self, found: tuple[dict[str, str], bool]) -> None:
        precisions, deterministic = found
        for unit, precision in precisions.items():
            getattr(torch.backends.mkldnn, unit).fp32_precision = precision
        set_deterministic(deterministic)

    def read(self) -> dict[str, str]:
        switches = {
            f"mkldnn.{unit}.fp32_precision": getattr(torch.backends.mkldnn, unit).fp32_precision for unit in UNITS
        }
        return {**switches, "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled())}

    def autocast_dtype(self, policy: str) -> torch.dtype | None:
        return AUTOCAST[policy]

    def arithmetic(self) -> str | None:
        # Anything but "ieee" only allows a faster unit, which the processor may not have.
        used = {getattr(torch.backends.mkldnn, unit).fp32_precision for unit in UNITS}
        return "fp32" if used == {"ieee"} else None
