"""What torch's allocators take for a tensor: their rounding, by name, and which one serves a chip."""

from __future__ import annotations

from typing import NamedTuple

from accel.chips import Chip
from accel.errors import ArgumentError
from accel.footprint import Bytes


class Allocator(NamedTuple):
    """Adds `added` bytes to each request and rounds up to a multiple of `granule`; `caches` as torch's caching
    allocators do (`accel.plan._caching`). `masks`: beside it, max pooling keeps a mask instead of indices.
    """

    name: str
    added: int
    granule: int
    caches: bool
    masks: bool = False

    def taken(self, sizes: Bytes) -> Bytes:
        """Bytes that storages of these sizes take; an empty one takes none."""
        rounded = -(-(sizes + self.added) // self.granule) * self.granule
        return rounded * (sizes > 0)


ALLOCATORS = {
    "exact": Allocator("exact", 0, 1, caches=False),  # what `memory.track` counts on a CPU
    "cuda": Allocator("cuda", 0, 512, caches=True),  # kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp
    # kMinBlockSize, after 32 bytes more: NPUCachingAllocator.cpp of torch_npu 2.13
    "npu": Allocator("npu", 32, 512, caches=True, masks=True),
}
_OF_VENDOR = {"NVIDIA": "cuda", "Huawei": "npu"}  # as the chip table spells them


def chosen(name: str | None, chip: Chip | None) -> Allocator:
    """The allocator `name`, or that of `chip`, or no rounding. Raises `ArgumentError` for an unknown name."""
    if name is None:
        name = "exact" if chip is None else _OF_VENDOR.get(chip.vendor, "exact")
    if name not in ALLOCATORS:
        raise ArgumentError(f"allocator is {name!r}; expected one of {', '.join(ALLOCATORS)}")
    return ALLOCATORS[name]
