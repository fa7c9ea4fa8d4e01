"""NVIDIA GPUs as devices: what the driver and CUDA say beyond torch's common device interface."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from accel.chips import recognise
from accel.device import DeviceProperties, Disturbance
from accel.eager import EagerDevice
from accel.errors import BackendError
from accel_cuda import nvml


class CudaDevice(EagerDevice):
    """The GPUs that this process sees. `visible`: their number as the driver lists them, until CUDA itself is asked."""

    metric_dtype = torch.float64

    def __init__(self, visible: int) -> None:
        super().__init__("cuda")
        self._visible = visible

    def count(self) -> int:
        # torch.cuda.device_count() may initialise CUDA, which a fork does not survive (torch 2.13).
        return int(torch.cuda.device_count()) if torch.cuda.is_initialized() else self._visible

    def set(self, index: int) -> None:
        index = self.checked(index)
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            raise BackendError(f"CUDA does not start: {str(error).splitlines()[0]}") from error
        check_code(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
        torch.cuda.set_device(index)

    def properties(self, index: int | None = None) -> DeviceProperties:
        found = torch.cuda.get_device_properties(self.checked(index))
        chip = recognise(found.name, found.total_memory).chip
        extra = {
            "compute_capability": f"{found.major}.{found.minor}",
            "uuid": f"GPU-{found.uuid}",
            "cudnn": str(torch.backends.cudnn.version()),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
        if chip is not None:
            extra["chip"] = chip.name
        return DeviceProperties(found.name, found.total_memory, found.multi_processor_count, extra)

    def identity(self, index: int | None = None) -> str | None:
        # NCCL compares PCI addresses and refuses two ranks on one, in its own words and only when it connects.
        return f"GPU-{torch.cuda.get_device_properties(self.checked(index)).uuid}"

    def energy(self, index: int | None = None) -> float | None:
        identity = self.identity(index)
        assert identity is not None
        return nvml.energy(identity)

    def disturbance(self, index: int | None = None) -> Disturbance:
        identity = self.identity(index)
        assert identity is not None
        return Disturbance(*nvml.disturbance(identity))

    def graphed(self, module: nn.Module, sample: torch.Tensor, autocast_dtype: torch.dtype | None) -> nn.Module:
        kept = [buffer.clone() for buffer in module.buffers()]
        # The casts of weights are recorded too: a cached one would be computed outside the graph.
        with torch.autocast("cuda", dtype=autocast_dtype, enabled=autocast_dtype is not None, cache_enabled=False):
            graphed: Any = torch.cuda.make_graphed_callables(module, (sample,))
        with torch.no_grad():  # warm-up and recording have run forward several times, BatchNorm's statistics with it
            for buffer, before in zip(module.buffers(), kept, strict=True):
                buffer.copy_(before)
        return cast(nn.Module, graphed)


def check_code(name: str, capability: tuple[int, int], built: list[str] | None = None) -> None:
    """Raise `BackendError` where the installed torch holds no code for a GPU; a kernel would fail later (V100).

    built: architectures of the build, such as "sm_80"; default: what torch says. Code runs on chips of its major
    version from its minor one on; "compute_90" is compiled for newer chips when it is loaded.
    """
    archs = torch.cuda.get_arch_list() if built is None else built
    for arch in archs:
        kind, _, number = arch.partition("_")
        version = "".join(c for c in number if c.isdigit())  # without the suffix of sm_90a
        code = int(version[:-1]), int(version[-1])
        if (kind == "sm" and code[0] == capability[0] and code <= capability) or (
            kind == "compute" and code <= capability
        ):
            return
    raise BackendError(
        f"{name} has compute capability {capability[0]}.{capability[1]} and torch {torch.__version__} has code for "
        f"{', '.join(archs)} only: install a build of torch that covers this GPU"
    )
