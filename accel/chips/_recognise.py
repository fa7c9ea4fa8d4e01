"""`recognise`: which chip of the table a driver's name means.

Names are matched whole: a driver's name that is not known here, or one whose memory does not fit, is nobody rather
than a relative (a V100S is no V100, an H200 NVL no H200 SXM, a slice of a GPU no GPU).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from accel.chips._table import Chip, suggestion, table

# How much of the memory in a product's name the driver reports: A100 40 GB 42.4e9 bytes, A100 80 GB 85.0e9, H200 141 GB
# 150.0e9, that is 0.98 to 0.99 GiB a GB; an Ascend or a GPU with ECC in its memory keeps up to a tenth for itself.
_LEAST, _MOST = 0.87, 1.02

# NVIDIA: the names that nvidia-smi and torch.cuda.get_device_name give; "Tesla" before 2020, "NVIDIA" since driver 465.
_NVIDIA = {
    "V100-SXM2-16GB": "V100-SXM2-16GB",
    "V100-SXM2-32GB": "V100-SXM2-32GB",
    "V100-PCIE-16GB": "V100-PCIe-16GB",
    "V100-PCIE-32GB": "V100-PCIe-32GB",
    "A100-SXM4-40GB": "A100-SXM4-40GB",
    "A100-SXM-80GB": "A100-SXM4-80GB",
    "A100-SXM4-80GB": "A100-SXM4-80GB",
    "A100-PCIE-40GB": "A100-PCIe-40GB",
    "A100 80GB PCIE": "A100-PCIe-80GB",
    "A100-PCIE-80GB": "A100-PCIe-80GB",
    "H100 80GB HBM3": "H100-SXM5",
    "H100 PCIE": "H100-PCIe",
    "H100 NVL": "H100-NVL",
    "H200": "H200-SXM",
}
# Huawei: aclrtGetSocName, which torch_npu.npu.get_device_name returns. "Ascend910B" alone is the name of an older chip
# and of a family, and "Ascend910" of a series: neither says which.
_ASCEND = {
    "ASCEND910A": "Ascend-910A",
    "ASCEND910PROA": "Ascend-910ProA",
    "ASCEND910PREMIUMA": "Ascend-910PremiumA",
    **{f"ASCEND910B{bin_}": f"Ascend-910B{bin_}" for bin_ in (1, 2, 3, 4)},
}
# Google: PJRT's device_kind (chip_version_from_device_kind in jax/_src/pallas/mosaic/tpu_info.py, jax 4f32df24) and the
# prefixes of accelerator types ("v5litepod-8") and of topologies ("v5e:2x2").
_TPU = {
    "TPU V2": "TPU-v2",
    "TPU V3": "TPU-v3",
    "TPU V4": "TPU-v4",
    "TPU V5 LITE": "TPU-v5e",
    "TPU V5E": "TPU-v5e",
    "TPU V5": "TPU-v5p",
    "TPU V5P": "TPU-v5p",
    "TPU V6 LITE": "TPU-v6e",
    "TPU V6E": "TPU-v6e",
    "TPU7X": "TPU-7x",
    "TPU V7X": "TPU-7x",
}
_TPU_SLICE = {
    "V2": "TPU-v2",
    "V3": "TPU-v3",
    "V4": "TPU-v4",
    "V5E": "TPU-v5e",
    "V5LITEPOD": "TPU-v5e",
    "V5P": "TPU-v5p",
    "V6E": "TPU-v6e",
    "TPU7X": "TPU-7x",
}
_SLICE = re.compile(r"([A-Z0-9]+)(?:-\d+|:\d+(?:X\d+)+)")


class Recognition(NamedTuple):
    """A chip of the table, or None and why."""

    chip: Chip | None
    reason: str | None


def recognise(name: str | None, memory: int | None = None) -> Recognition:
    """The chip that a driver calls `name`: an NVIDIA product name, an Ascend SoC name, a TPU's device kind, accelerator
    type or topology. `memory` is the device's memory in bytes as the driver reports it, where it does; one that does
    not fit the chip's makes the chip unknown.
    """
    if not name or not name.strip():
        return Recognition(None, "neither the driver nor the operating system names the device")
    plain = " ".join(name.upper().split())
    found = _find(plain)
    if found is None:
        return Recognition(None, _why_not(name, plain))
    chip = table()[found]
    if memory is not None and chip.memory is not None:
        printed = chip.memory.value * 2**30 / chip.devices_per_chip
        if not _LEAST * printed <= memory <= _MOST * printed:
            return Recognition(
                None,
                f"{name!r} reports {memory / 2**30:.1f} GiB of memory, but {found} has {printed / 2**30:g} a device: "
                "another variant, or a part of one",
            )
    return Recognition(chip, None)


def _find(plain: str) -> str | None:
    words = plain.removeprefix("NVIDIA ").removeprefix("TESLA ")
    slice_ = _SLICE.fullmatch(plain)
    known = _NVIDIA.get(words) or _ASCEND.get(plain) or _TPU.get(plain)
    return known or (_TPU_SLICE.get(slice_[1]) if slice_ else None)


def _why_not(name: str, plain: str) -> str:
    if " MIG " in f" {plain} ":
        return f"{name!r} is a slice of a GPU (MIG); its share of the peaks is not in the table"
    if plain in {"ASCEND910B", "ASCEND910"}:
        return f"{name!r} does not say which bin it is (910A, 910B1 to 910B4), and their peaks differ by 40 %"
    return f"{name!r} is not in the chip table{suggestion(name)}"
