"""The switches that decide how an NPU computes in fp32: HF32 (19 bits) in matrix products and convolutions.

`torch.npu.matmul.allow_hf32` is off by default, `torch.npu.conv.allow_hf32` on (torch_npu 2.9 to 2.14), so that fp32
convolutions run in HF32 unless switched off. `matmul.cube_math_type`, where torch_npu has it and somebody set it, wins
over both.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import torch
import torch_npu

from accel import _env
from accel.errors import UnsupportedError
from accel.numerics import Numerics, set_deterministic

AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# Read when a communicator is made; sums are in whatever order packets come in otherwise (CANN, "HCCL_DETERMINISTIC").
HCCL = {"HCCL_DETERMINISTIC": "true"}
SATURATING = (
    "overflow saturates at 65504 instead of becoming inf, so that no loss scaling can see it "
    "(INF_NAN_MODE_ENABLE={enable}, INF_NAN_MODE_FORCE_DISABLE={disable}): unset both variables, or use bf16"
)


class NpuNumerics(Numerics):
    """HF32 by unit, torch's determinism, and the overflow mode, which a process cannot change."""

    device_type = "npu"
    not_deterministic = (
        "HCCL sums in a fixed order only where HCCL_DETERMINISTIC=true was set before its first collective, which a "
        "session does; operators that CANN has no deterministic form of run as they are"
    )
    deterministic_values: ClassVar[dict[str, tuple[str, ...]]] = {"HCCL_DETERMINISTIC": ("true", "strict")}

    def snapshot(self) -> tuple[bool, bool, Any, bool]:
        return (
            torch_npu.npu.matmul.allow_hf32,
            torch_npu.npu.conv.allow_hf32,
            torch_npu.npu.matmul.cube_math_type,
            torch.are_deterministic_algorithms_enabled(),
        )

    def set(self, policy: str, deterministic: bool) -> None:
        if policy == "fp16" and not torch_npu.npu.utils.is_support_inf_nan():  # T14
            raise UnsupportedError(f"precision 'fp16' is unsupported on npu: {saturating()}")
        if deterministic:
            _env.set_vendor_variables(HCCL)
        fast = policy == "tf32"
        kinds = torch_npu.npu.CubeMathType
        # None where nobody set it; it cannot be unset again, so it is left alone then.
        cube = torch_npu.npu.matmul.cube_math_type
        if cube is not None:
            cube = kinds.USE_HF32 if fast else kinds.KEEP_DTYPE
        self.put_back((fast, fast, cube, deterministic))

    def put_back(self, found: tuple[bool, bool, Any, bool]) -> None:
        matmul, conv, cube, deterministic = found
        torch_npu.npu.matmul.allow_hf32 = matmul
        torch_npu.npu.conv.allow_hf32 = conv
        if cube is not None:
            torch_npu.npu.matmul.cube_math_type = cube
        set_deterministic(deterministic)

    def read(self) -> dict[str, str]:
        cube = torch_npu.npu.matmul.cube_math_type
        return {
            "matmul.allow_hf32": str(torch_npu.npu.matmul.allow_hf32),
            "conv.allow_hf32": str(torch_npu.npu.conv.allow_hf32),
            "matmul.cube_math_type": "unset" if cube is None else str(cube.name),
            "overflow": "inf/nan" if torch_npu.npu.utils.is_support_inf_nan() else "saturation",
            "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        }

    def autocast_dtype(self, policy: str) -> torch.dtype | None:
        return AUTOCAST[policy]

    def arithmetic(self) -> str | None:
        cube = torch_npu.npu.matmul.cube_math_type
        if cube is not None:  # wins over both switches
            kinds = torch_npu.npu.CubeMathType
            return {kinds.USE_HF32: "hf32", kinds.KEEP_DTYPE: "fp32"}.get(cube)
        matmul, conv = torch_npu.npu.matmul.allow_hf32, torch_npu.npu.conv.allow_hf32
        return None if matmul != conv else "hf32" if matmul else "fp32"


def saturating() -> str:
    """Why fp16 is refused in saturation mode, with the variables as they are."""
    values = (os.environ.get(name, "unset") for name in ("INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE"))
    enable, disable = values
    return SATURATING.format(enable=enable, disable=disable)


def saturation_asked() -> bool:
    """Whether the environment switches inf and NaN off; known before any device starts."""
    return os.environ.get("INF_NAN_MODE_ENABLE") == "0" or os.environ.get("INF_NAN_MODE_FORCE_DISABLE") == "1"
