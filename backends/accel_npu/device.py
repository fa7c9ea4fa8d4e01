"""Ascend NPUs as `torch.npu` shows them."""

from __future__ import annotations

import os
import sys

import torch
import torch_npu

from accel.device import DeviceProperties
from accel.eager import EagerDevice
from accel.errors import BackendError, DeviceError
from accel_npu import _errors, _visible

SHIM = "torch_npu.contrib.transfer_to_npu"


class NpuDevice(EagerDevice):
    """`visible`: physical ids by logical index where ASCEND_RT_VISIBLE_DEVICES chooses some, else None."""

    # metric_dtype stays float32: `x.double()` on an NPU gives float32, with a warning only (torch_npu 2.13).

    def __init__(self, visible: list[int] | None = None) -> None:
        super().__init__("npu")
        self._visible = visible

    def set(self, index: int) -> None:
        try:
            count = self.count()
        except RuntimeError as error:
            raise _errors.start_failure(error) from error
        if self._visible is not None and count != len(self._visible):  # T31
            raise BackendError(
                f"{_visible.VARIABLE}={os.environ.get(_visible.VARIABLE)!r} asks for {len(self._visible)} NPU(s) and "
                f"the runtime shows {count}: an id is not usable on this machine; `npu-smi info` lists those that are"
            )
        try:
            super().set(index)
            torch_npu.npu.utils.is_support_inf_nan()  # starts the runtime, which may refuse the mode asked for (T14)
        except RuntimeError as error:
            raise _errors.start_failure(error) from error

    def properties(self, index: int | None = None) -> DeviceProperties:
        index = self.checked(index)
        found = self._module.get_device_properties(index)
        extra = {
            "soc": found.name,
            "cann": str(torch_npu.npu.utils.get_cann_version()),
            "physical_id": str(index if self._visible is None else self._visible[index]),
            "vector_cores": str(found.vector_core_num),
            "overflow": "inf/nan" if torch_npu.npu.utils.is_support_inf_nan() else "saturation",
        }
        if SHIM in sys.modules:
            extra["transfer_to_npu"] = "torch.cuda is patched to mean torch.npu in this process"
        return DeviceProperties(found.name, found.total_memory, found.cube_core_num, extra)

    def explained(self, error: RuntimeError) -> DeviceError | None:
        return _errors.device_failure(error)

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        # The copy keeps channels_last strides, which no operation of the NPU is made for (torch_npu 2.13).
        return tensor.contiguous().to(self.torch_device, non_blocking=True)


def shim_report() -> str | None:
    """What transfer_to_npu has done to this process; None when it is not loaded."""
    if SHIM not in sys.modules:
        return None
    return (
        "torch_npu.contrib.transfer_to_npu is loaded: torch.cuda means torch.npu in this process, so code that asks "
        "torch.cuda what it runs on is told CUDA. accel needs no such patch"
    )
