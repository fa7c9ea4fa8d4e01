"""From the driver's name of a GPU to the chip that it is: NVIDIA writes form, memory and MIG slice in many ways.

Names as `nvidia-smi -L` gives them on the machines in question; a name that is not known gives no chip, not a guess: an
H800 or A100X has other figures than the chip that its name resembles.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Chip(NamedTuple):
    """`name`: the chip, such as "A100-SXM4-80GB", None where it is not known; `mig`: the slice of it, "3g.40gb"."""

    name: str | None
    mig: str | None


_MIG = re.compile(r"\s+MIG\s+(\d+c\.)?(?P<profile>\d+g\.\d+gb\S*)$")
_NAMES = (
    ("V100-SXM2", r"V100-SXM[23]-(16|32)GB"),
    ("V100-PCIe", r"V100-PCIE-(16|32)GB"),
    ("A100-SXM4-40GB", r"A100-SXM4-40GB"),
    ("A100-SXM4-80GB", r"A100-SXM4-80GB"),
    ("A100-PCIe-40GB", r"A100-PCIE-40GB"),
    ("A100-PCIe-80GB", r"A100(-PCIE-80GB| 80GB PCIe)"),
    ("H100-SXM5", r"H100 (80GB HBM3|SXM5 80GB)"),
    ("H100-PCIe", r"H100 PCIe"),
    ("H100-NVL", r"H100 NVL"),
    ("H200-SXM", r"H200"),
)


def resolve(driver_name: str) -> Chip:
    """The chip behind a name such as "NVIDIA A100-SXM4-40GB MIG 3g.20gb"."""
    slice_ = _MIG.search(driver_name)
    whole = driver_name[: slice_.start()] if slice_ else driver_name
    bare = re.sub(r"^(NVIDIA|Tesla)\s+", "", whole.strip())
    name = next((chip for chip, pattern in _NAMES if re.fullmatch(pattern, bare)), None)
    return Chip(name, slice_["profile"] if slice_ else None)
