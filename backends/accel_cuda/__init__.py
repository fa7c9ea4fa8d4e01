"""NVIDIA GPUs (NCCL): what is present, and whether torch can use it.

Answers come from device files, the PCI bus and NVML; torch is not imported and CUDA not initialised. torch.cuda is not
asked: a CUDA build without a GPU calls itself "cuda" (torch 2.13), and an NPU's shim may have patched it (T32).
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from accel import _probe
from accel.allocator import Allocator
from accel.backend import BackendInfo, BackendParts
from accel.errors import BackendError
from accel_cuda import nvml
from accel_cuda.visible import visible

NVIDIA = "0x10de"  # PCI vendor id
# 3D controllers: the chips of servers. Display cards (0x0300) may be there for a screen alone, without CUDA's driver.
CONTROLLER_CLASSES = ("0x0302",)
ABSENT = "no NVIDIA GPU is present (no /dev/nvidia* device file)"
# CUDA 13 has no code for chips before Turing (CUDA 13.0 release notes, "Deprecated Architectures").
OLDEST_OF_CUDA_13 = (7, 5)


class CudaSpec:
    """Registered as `cuda` in the entry-point group `accel.backends`."""

    name = "cuda"
    aliases: tuple[str, ...] = ()
    vendor = "NVIDIA"  # as `accel.chips` spells it

    def hardware(self) -> str | None:
        found = _files() or _probe.pci_devices(NVIDIA, CONTROLLER_CLASSES)
        return f"{len(found)} NVIDIA GPU(s)" if found else None

    def probe(self) -> BackendInfo:
        hardware = self.hardware()
        versions = _probe.versions("torch")
        origin = None
        try:
            found, gpus = _usable(hardware)
        except BackendError as error:
            reason = str(error)
        else:
            versions = {**versions, "cuda": _build()[0] or "", "nvidia_driver": found.version}
            origin, reason = "measured", f"{', '.join(_counted([gpu.name for gpu in gpus]))}; collectives by NCCL"
        return BackendInfo(
            self.name,
            usable=origin is not None,
            reason=reason,
            versions=versions,
            origin=origin,
            hardware=hardware,
            aliases=self.aliases,
        )

    def variables(self, timeout: float) -> dict[str, str]:
        """Torch reads it when the first communicator is made; 0, its default before torch 2.8, records nothing."""
        return {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}

    def allocator(self) -> Allocator:
        from accel.eager_memory import TORCH

        return TORCH

    def load(self) -> BackendParts:
        _, gpus = _usable(self.hardware())
        if "torch_npu.contrib.transfer_to_npu" in sys.modules:
            raise BackendError(
                "torch_npu.contrib.transfer_to_npu has replaced torch.cuda by the NPU's in this process: do not "
                "import it where backend 'cuda' is used"
            )
        from accel_cuda.device import CudaDevice
        from accel_cuda.memory import CudaMemory
        from accel_cuda.numerics import CudaNumerics
        from accel_cuda.table import capabilities
        from accel_cuda.transport import CudaTransport

        device, transport, weakest = CudaDevice(len(gpus)), CudaTransport(), min(gpu.capability for gpu in gpus)
        return BackendParts(
            device, transport, CudaNumerics(weakest), CudaMemory(device), capabilities(transport, weakest)
        )


def _usable(hardware: str | None) -> tuple[nvml.Driver, list[nvml.Gpu]]:
    """The driver and the GPUs that this process can use. Raises `BackendError` with the one reason why it cannot."""
    if hardware is None:
        raise BackendError(ABSENT)
    if not _files():
        raise BackendError(
            f"{hardware} is on the PCI bus, but there is no /dev/nvidia* device file: the driver is not loaded, "
            "or this container was started without GPUs (docker run --gpus all)"
        )
    if not _probe.installed("torch"):
        raise BackendError(f"{hardware} is present, but torch is not installed; run `pip install torch`")
    torch = f"torch {_probe.versions('torch').get('torch', 'of unknown version')}"
    cuda, other = _build()
    if cuda is None:
        raise BackendError(f"{hardware} is present, but {torch} is {other}; install a CUDA build of torch")
    try:
        driver = nvml.driver()
    except nvml.NvmlError as error:
        raise BackendError(f"{hardware} is present, but {error}") from error
    need = tuple(int(part) for part in cuda.split(".")[:2])
    # Any driver of a CUDA major version runs all its minor ones (CUDA Compatibility, "Minor Version Compatibility").
    if driver.cuda[0] < need[0]:
        raise BackendError(
            f"{hardware} is present, but its driver {driver.version} runs CUDA {driver.cuda[0]}.{driver.cuda[1]} at "
            f"most and {torch} is built for CUDA {cuda}: update the driver, or install a torch built for an older CUDA"
        )
    gpus = visible(driver.gpus)
    old = next((gpu for gpu in gpus if need[0] >= 13 and gpu.capability < OLDEST_OF_CUDA_13), None)
    if old is not None:
        raise BackendError(
            f"{old.name} has compute capability {old.capability[0]}.{old.capability[1]} and {torch} is built for CUDA "
            f"{cuda}, which has no code for it; install a torch built for CUDA 12"
        )
    return driver, gpus


def _files() -> list[str]:
    return _probe.device_files("dev/nvidia[0-9]*")


def _build() -> tuple[str | None, str]:
    """The CUDA version that the installed torch is built for, or None and what it is built for; torch stays unloaded.

    torch/version.py has said so since torch 1.0, in assignments such as `cuda: Optional[str] = '12.8'`.
    """
    spec = importlib.util.find_spec("torch")
    text = "" if spec is None or spec.origin is None else Path(spec.origin).with_name("version.py").read_text()
    found = dict(re.findall(r"^(cuda|hip|xpu)\b[^=\n]*= *'([^']+)'", text, re.MULTILINE))
    return found.get("cuda"), "a ROCm build" if "hip" in found else "an XPU build" if "xpu" in found else "a CPU build"


def _counted(names: list[str]) -> list[str]:
    return [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]


SPEC = CudaSpec()
