"""Huawei Ascend NPUs (HCCL through torch_npu): detection only in this version."""

from __future__ import annotations

from accel import _probe
from accel._pending import PendingSpec


def _hardware() -> str | None:
    # The driver makes one /dev/davinciN per NPU beside the manager /dev/davinci_manager.
    found = _probe.device_files("dev/davinci[0-9]*")
    return f"{len(found)} Ascend NPU(s)" if found else None


SPEC = PendingSpec(
    name="npu",
    aliases=("ascend",),
    find=_hardware,
    module="torch_npu",
    distributions=("torch_npu",),
    absent="no Ascend NPU is present (no /dev/davinci* device file)",
)
