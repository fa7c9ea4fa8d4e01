"""NVIDIA GPUs (NCCL): detection only in this version."""

from __future__ import annotations

from accel import _probe
from accel._pending import PendingSpec


def _hardware() -> str | None:
    # Character devices of the kernel driver; torch.cuda is not asked, since it may initialise CUDA or be patched (T32).
    found = _probe.device_files("dev/nvidia[0-9]*")
    return f"{len(found)} NVIDIA GPU(s)" if found else None


SPEC = PendingSpec(
    name="cuda",
    aliases=(),
    find=_hardware,
    module="torch",
    distributions=(),
    absent="no NVIDIA GPU is present (no /dev/nvidia* device file)",
)
