"""What torch_xla does natively, what is emulated and what it cannot do; the collectives' cells come from the lowering
itself.
"""

from __future__ import annotations

from accel._lowering import cells
from accel.capabilities import Capability, CapabilityTable, emulated, native, unsupported
from accel.transport import Transport
from accel_xla.memory import NO_ALLOCATOR, NO_FIGURES
from accel_xla.numerics import NO_FP16
from accel_xla.transport import ALONE

NO_FLOAT8 = "torch_xla 2.9 cannot trace float8"


def capabilities(transport: Transport, client: str) -> CapabilityTable:
    """`client`: the PJRT client that runs the graphs, "TPU" or "CPU"."""
    counted = client != "CPU"
    table: dict[str, Capability] = {
        "precision.fp32": native("matrix products and convolutions at precision 'highest': six bf16 passes on a TPU"),
        "precision.tf32": native("matrix products and convolutions at precision 'default': one bf16 pass on a TPU"),
        "precision.bf16": native("torch.autocast to bfloat16; what is not cast computes as under fp32"),
        "precision.fp16": unsupported(NO_FP16),
        "device.stream": unsupported("a lazy device orders work by its graph"),
        "device.event": unsupported("a lazy device has no streams"),
        "device.energy": unsupported("torch_xla tells no energy"),
        "memory.allocated": native("live bytes of PJRT's client") if counted else unsupported(NO_FIGURES),
        "memory.reserved": unsupported(NO_ALLOCATOR if counted else NO_FIGURES),
        "memory.peak_reset": unsupported("PJRT's peak is that of the process"),
        "memory.track": native("change; a peak where the process's peak rose inside the block")
        if counted
        else unsupported(NO_FIGURES),
        "memory.course": unsupported("XLA lays out a step's memory when it compiles the graph, out of torch's sight"),
        "memory.oom": native("RESOURCE_EXHAUSTED when compiling or running")
        if counted
        else unsupported("Linux ends a process that takes too much: the CPU client has no limit of its own"),
        "memory.snapshot": unsupported("PJRT keeps no allocation history in torch's format"),
        "memory.limit": unsupported("PJRT takes its limit when the process starts"),
        "memory.pinned": unsupported("torch_xla has no pinned memory; PJRT stages its own transfers"),
        "train.fused_optimizer": unsupported("torch's fused optimizers know no XLA tensors; the graph fuses the step"),
        "train.graphs": unsupported("each step is one graph already"),
        "train.checkpoint": native("recomputed behind a barrier in the same graph; buffers are written once"),
        "prepare.channels_last": emulated("accepted and without effect: XLA chooses layouts itself"),
        "prepare.compile": unsupported("each step is compiled as one graph already; torch.compile would cut it"),
        "prepare.sync_batchnorm": unsupported("torch's SyncBatchNorm takes CUDA tensors only"),
        "collective.processes": native("XLA's own collectives, between the replicas that PJRT knows"),
        "collective.groups": unsupported(ALONE),
    }
    table |= cells(transport)
    table |= {name: unsupported(ALONE) for name in table if name.startswith(("send.", "recv."))}
    table |= {name: unsupported(NO_FLOAT8) for name in table if ".float8" in name}
    return CapabilityTable("xla", table)
