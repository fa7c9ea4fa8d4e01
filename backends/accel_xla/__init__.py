"""Google TPUs through torch_xla: detection only in this version."""

from __future__ import annotations

from accel import _probe
from accel._pending import PendingSpec

GOOGLE = "0x1ae0"  # PCI vendor id of Google
ACCELERATOR_CLASSES = ("0x0880", "0x1200")  # system peripheral and processing accelerator, as TPU hosts list them


def tpu_hardware() -> str | None:
    """The TPU in this machine, from device files (v2 to v4: /dev/accelN) or the PCI bus (v5e and later use VFIO)."""
    found = _probe.device_files("dev/accel[0-9]*") or _probe.pci_devices(GOOGLE, ACCELERATOR_CLASSES)
    return f"{len(found)} Google TPU chip(s)" if found else None


SPEC = PendingSpec(
    name="xla",
    aliases=("tpu",),
    find=tpu_hardware,
    module="torch_xla",
    distributions=("torch_xla", "libtpu"),
    absent="no TPU is present (no /dev/accel* device file, no Google accelerator on the PCI bus)",
)
