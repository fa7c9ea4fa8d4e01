"""What an NPU does natively, what is emulated and what it cannot do; the collectives' cells come from the lowering
itself.
"""

from __future__ import annotations

from accel._lowering import cells
from accel.capabilities import Capability, CapabilityTable, native, unsupported
from accel.transport import Transport
from accel_npu.numerics import saturating, saturation_asked

# InplaceCopy of CANN 8.5 for Atlas A2 lists no float8; those of later chips do.
NO_FLOAT8 = "a 910B's operators take no float8"


def capabilities(transport: Transport) -> CapabilityTable:
    table: dict[str, Capability] = {
        "precision.fp32": native("IEEE fp32; HF32 is switched off in matrix products and convolutions"),
        "precision.tf32": native("HF32, the chip's fast fp32, in matrix products and convolutions"),
        "precision.bf16": native("autocast to bfloat16"),
        "precision.fp16": native("autocast to float16 with loss scaling; the NPU keeps inf and NaN"),
        "device.stream": native("torch.npu.Stream; it has no priority"),
        "device.event": native("torch.npu.Event"),
        "device.energy": unsupported("CANN counts no energy; npu-smi tells the power of a moment"),
        "memory.allocated": native("live bytes of torch_npu's caching allocator"),
        "memory.reserved": native("bytes that torch_npu's caching allocator holds in HBM"),
        "memory.peak_reset": native("torch.npu.reset_peak_memory_stats"),
        "memory.track": native("the peak starts anew with the block and the earlier one is kept"),
        "memory.course": native("storages as the step's operations make and free them, counted by accel"),
        "memory.oom": native("torch.OutOfMemoryError, and errors of CANN by their codes"),
        "memory.snapshot": native("torch_npu's allocator snapshot, readable by torch's memory visualiser"),
        "memory.limit": native("torch.npu.set_per_process_memory_fraction"),
        "memory.pinned": native("page-locked host memory, from which copies run beside the computation"),
        "train.fused_optimizer": native("torch_npu's fused SGD, whose momentum must not be 0, Adam and AdamW"),
        "train.graphs": unsupported("whether torch_npu's NPUGraph replays a step is not tried: it needs a device"),
        "train.checkpoint": native("recomputed in backward; buffers are written once, dropout masks are replayed"),
        "prepare.channels_last": unsupported("torch_npu refuses channels_last; tensors are contiguous, NCHW"),
        "prepare.compile": unsupported("inductor knows no device npu (torch_npu 2.13)"),
        "prepare.sync_batchnorm": native("torch.nn.SyncBatchNorm over HCCL"),
        "collective.processes": native("HCCL between processes"),
    }
    if saturation_asked():  # T14
        table["precision.fp16"] = unsupported(saturating())
    table |= cells(transport)
    table |= {name: unsupported(NO_FLOAT8) for name in table if ".float8" in name}
    return CapabilityTable("npu", table)
