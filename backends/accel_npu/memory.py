"""Memory of Ascend NPUs: torch_npu's caching allocator over HBM.

The allocator adds 32 bytes to each request before it rounds to 512 (torch_npu 2.13): figures of one model are therefore
a little above CUDA's, and 1 MiB takes 1 MiB + 512 bytes.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from accel.allocator import Allocator
from accel.eager_memory import EagerMemory
from accel_npu.pooling import mask

# kMinBlockSize, after 32 bytes more: NPUCachingAllocator.cpp of torch_npu 2.13
ALLOCATOR = Allocator("npu", added=32, granule=512, caches=True, outputs=mask)


class NpuMemory(EagerMemory):
    """torch_npu has no OutOfMemoryError of its own and raises torch.OutOfMemoryError, but not from every place."""

    allocator = ALLOCATOR
    oom_texts = (
        "error code is 207001",  # ACL_ERROR_RT_MEMORY_ALLOCATION
        "error code is 207018",  # ACL_ERROR_RT_DEVICE_OOM
        "EL0004",  # "Failed to allocate memory" of CANN's error list
    )

    def _dump(self, file: Path) -> None:
        # _dump_snapshot would start a profiler where the driver's own figures cannot be saved (torch_npu 2.13).
        file.write_bytes(pickle.dumps(self._module.memory._snapshot()))
