"""`Allocator`: what a device takes for a tensor, as data that a backend gives, so that a step is planned without it.

Imports no torch: a backend's spec may name its allocator. `accel.plan` uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from accel.footprint import Bytes

# Of one operation, from its function, arguments and result: a tensor of the result and the bytes that it has on the
# device, where its kernel writes another one than torch's.
Outputs = Callable[[Any, tuple[Any, ...], Any], "tuple[Any, int] | None"]


class Allocator(NamedTuple):
    """Adds `added` bytes to each request and rounds up to a multiple of `granule`; `caches` as torch's caching
    allocators do (`accel.plan._caching`). `outputs` knows tensors whose size on the device differs from torch's.
    """

    name: str
    added: int = 0
    granule: int = 1
    caches: bool = False
    outputs: Outputs | None = None

    def taken(self, sizes: Bytes) -> Bytes:
        """Bytes that storages of these sizes take; an empty one takes none."""
        rounded = -(-(sizes + self.added) // self.granule) * self.granule
        return rounded * (sizes > 0)


EXACT = Allocator("exact")  # nothing is rounded: what `memory.track` counts on a CPU


@runtime_checkable
class PlansMemory(Protocol):
    """A backend's spec that says how the memory of its chips is cut, on machines without them too."""

    name: str
    vendor: str  # whose chips of `accel.chips` it drives

    def allocator(self) -> Allocator:
        """The allocator of its devices. May import torch, but no vendor package."""
