"""What torch_tpu does natively, what is emulated and what it cannot do; the collectives' cells come from the lowering
itself. Each cell says that no TPU has confirmed it.
"""

from __future__ import annotations

from accel._lowering import cells
from accel.capabilities import Capability, CapabilityTable, native, unsupported
from accel.transport import Transport
from accel_tpu import UNVERIFIED
from accel_tpu.device import NO_STREAMS
from accel_tpu.memory import NO_ALLOCATOR, NO_HISTORY, NO_PEAK_RESET
from accel_tpu.numerics import NO_FP16


def capabilities(transport: Transport) -> CapabilityTable:
    table: dict[str, Capability] = {
        "precision.fp32": native("matrix products and convolutions at precision 'highest': six bf16 passes"),
        "precision.tf32": native("matrix products and convolutions at precision 'medium': one bf16 pass"),
        "precision.bf16": native("torch.autocast to bfloat16; what is not cast computes as under fp32"),
        "precision.fp16": unsupported(NO_FP16),
        "device.stream": unsupported(NO_STREAMS),
        "device.event": native("measured on the host, when it is told that the work is done"),
        "device.energy": unsupported("torch_tpu tells no energy"),
        "memory.allocated": native("live bytes as libtpu counts them"),
        "memory.reserved": unsupported(NO_ALLOCATOR),
        "memory.peak_reset": unsupported(NO_PEAK_RESET),
        "memory.track": native("change; a peak where the process's peak rose inside the block"),
        "memory.course": unsupported(
            "torch_tpu defers and fuses operations: what torch sees is not what the TPU holds"
        ),
        "memory.oom": native("RESOURCE_EXHAUSTED"),
        "memory.snapshot": unsupported(NO_HISTORY),
        "memory.limit": unsupported("libtpu takes its limit when the process starts"),
        "memory.pinned": unsupported("a copy from pinned memory gains nothing without a stream of its own"),
        "train.fused_optimizer": unsupported("whether torch's fused optimizers take TPU tensors is not known"),
        "train.graphs": unsupported("torch_tpu has no recorded graphs to replay; torch.compile is its way"),
        "train.checkpoint": native("recomputed in backward; buffers are written once, dropout masks are replayed"),
        "prepare.compile": native("torch.compile with torch_tpu's own backend"),
        "prepare.channels_last": unsupported("XLA chooses layouts itself"),
        "prepare.sync_batchnorm": unsupported("torch's SyncBatchNorm takes CUDA tensors only"),
        "collective.processes": native("tpu_dist between processes, one for each chip"),
    }
    named = {**table, **cells(transport)}
    return CapabilityTable("tpu", {name: Capability(c.support, f"{c.why} ({UNVERIFIED})") for name, c in named.items()})
