"""Transport of the NPU backend: HCCL, and what it carries and reduces as it is on a 910B."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch_npu  # registers the c10d backend "hccl"

from accel._c10d import C10dTransport
from accel_npu import _errors

_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})


class NpuTransport(C10dTransport):
    """HCCL between processes; its operations run on streams of their own."""

    name = "hccl"
    c10d_backend = "hccl"
    # getHcclDataType of torch_npu 2.9 to 2.14: float64 and bool move; uint16 to uint64, complex and float8 do not.
    native_dtypes = _INTEGERS | _FLOATS | {torch.uint8, torch.bool, torch.float64}
    # checkSupportedDataType of torch_npu 2.13 (ProcessGroupHCCL.cpp): neither uint8 nor float64 is reduced on a 910B.
    native_reductions: Mapping[str, frozenset[torch.dtype]] = {
        "sum": _INTEGERS | _FLOATS,
        # "prod" knows neither int16 nor bfloat16 on Atlas A2 (CANN 8.0 to 8.5, HCCL API, allreduce).
        "product": _INTEGERS - {torch.int16} | _FLOATS - {torch.bfloat16},
        # Whether a NaN on one rank reaches all is said nowhere: floating min and max travel as integers.
        "min": _INTEGERS,
        "max": _INTEGERS,
        # HCCL has none; torch_npu sums, then divides (overflows fp16).
        "mean": frozenset(),
    }
    # torch_npu's watchdog must come after HCCL's own limit, whose error says what happened; torch_npu warns
    # where it does not (ProcessGroupHCCL.cpp, torch_npu 2.13).
    grace = 60.0

    def destroy(self) -> None:
        try:
            super().destroy()
        finally:
            # What failed on a stream is told where the host next waits for it: here, and not in a later session.
            torch_npu.npu.synchronize()

    def fault(self, error: RuntimeError) -> str | None:
        return _errors.fabric_fault(error)
