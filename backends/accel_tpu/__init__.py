"""Google TPUs through torch_tpu: detection only in this version."""

from __future__ import annotations

from accel._pending import PendingSpec
from accel_xla import tpu_hardware

SPEC = PendingSpec(
    name="tpu",
    aliases=(),
    find=tpu_hardware,
    module="torch_tpu",
    distributions=("torch_tpu", "libtpu"),
    absent="no TPU is present (no /dev/accel* device file, no Google accelerator on the PCI bus)",
)
