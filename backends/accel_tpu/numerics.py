"""The switch that decides how a TPU multiplies fp32 under torch_tpu: passes in bf16, or enough of them.

torch_tpu takes over `torch.set_float32_matmul_precision` for products and convolutions: "highest" is six bf16 passes,
"medium" is StableHLO's DEFAULT, one pass (torch_tpu 0.2.0, _loader.py and precision.py).
"""

from __future__ import annotations

import torch

from accel.errors import UnsupportedError
from accel.numerics import Numerics, set_deterministic
from accel_tpu.device import experimental

NO_FP16 = (
    "TPUs have no float16 units, and torch_tpu lacks the operation under torch.amp.GradScaler (0.2.0); use bf16, which "
    "needs no loss scaling"
)
# Given to torch.autocast explicitly: torch_tpu's own default is float16.
AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16}


class TpuNumerics(Numerics):
    """The precision of matrix products and convolutions, and torch's determinism."""

    device_type = "tpu"
    not_deterministic = (
        "torch's switch does not reach the compiler: one program on one kind of chip repeats its numbers, and another "
        "version of libtpu or another number of chips may not"
    )

    def snapshot(self) -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()

    def set(self, policy: str, deterministic: bool) -> None:
        if policy not in AUTOCAST:
            raise UnsupportedError(f"precision {policy!r} is unsupported on tpu: {NO_FP16}")
        self.put_back(("medium" if policy == "tf32" else "highest", deterministic))

    def put_back(self, found: tuple[str, bool]) -> None:
        precision, deterministic = found
        torch.set_float32_matmul_precision(precision)
        set_deterministic(deterministic)

    def read(self) -> dict[str, str]:
        with experimental():
            excess = torch.get_device_module(self.device_type).allow_excess_precision
        return {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "allow_excess_precision": str(excess),
            "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        }

    def autocast_dtype(self, policy: str) -> torch.dtype | None:
        return AUTOCAST[policy]

    def arithmetic(self) -> str | None:
        return {"highest": "fp32", "medium": "bf16"}.get(torch.get_float32_matmul_precision())
