"""What NVIDIA GPUs do natively, what is emulated and what they cannot do; the collectives' cells come from the
lowering itself.
"""

from __future__ import annotations

from accel._lowering import cells
from accel.capabilities import Capability, CapabilityTable, emulated, native, unsupported
from accel.transport import Transport
from accel_cuda.numerics import BF16, NO_BF16, TF32


def capabilities(transport: Transport, capability: tuple[int, int]) -> CapabilityTable:
    """`capability`: the lowest compute capability of the GPUs in use."""
    tf32, bf16 = capability >= TF32, capability >= BF16
    table: dict[str, Capability] = {
        "precision.fp32": native("IEEE fp32; TF32 is switched off in matrix products and convolutions"),
        "precision.tf32": native("TF32 tensor cores in matrix products and convolutions: 10 bits of mantissa")
        if tf32
        else emulated("the chip has no TF32 units and computes IEEE fp32"),
        "precision.bf16": native("autocast to bfloat16, added up in fp32; what is not cast computes as under fp32")
        if bf16
        else unsupported(NO_BF16),
        "precision.fp16": native("autocast to float16 with loss scaling; what is not cast computes as under fp32"),
        "device.stream": native("CUDA streams"),
        "device.event": native("CUDA events"),
        "device.energy": native("NVML's energy counter (Volta and later); None for a MIG device"),
        "memory.allocated": native("live bytes of torch's caching allocator"),
        "memory.reserved": native("bytes that torch's caching allocator holds"),
        "memory.peak_reset": native("the peaks start anew at the live values"),
        "memory.track": native("the peak starts anew with the block and the earlier one is kept"),
        "memory.course": native("storages as the step's operations make and free them, counted by accel"),
        "memory.oom": native("torch.OutOfMemoryError, and errors of cuBLAS, cuDNN and NCCL by their words"),
        "memory.snapshot": native("blocks, and the history of those recorded, for PyTorch's memory visualiser"),
        "memory.limit": native("a share of the device's memory, kept by torch's caching allocator"),
        "memory.pinned": native("page-locked host memory, from which copies run beside the computation"),
        "train.fused_optimizer": native("one kernel for many parameters: torch's fused SGD, Adam, AdamW and Adagrad"),
        "train.graphs": native("forward and backward recorded as CUDA graphs; one process, fixed shapes, no window"),
        "train.checkpoint": native("recomputed in backward; buffers are written once, dropout masks are replayed"),
        "prepare.compile": native("torch.compile with inductor; needs triton and a C compiler"),
        "prepare.channels_last": native("chosen for 2-D convolutions under tf32, bf16 and fp16, whose units take it"),
        "prepare.sync_batchnorm": native("torch's SyncBatchNorm"),
        "collective.processes": native("NCCL between processes, one GPU each"),
    }
    return CapabilityTable("cuda", {**table, **cells(transport)})
