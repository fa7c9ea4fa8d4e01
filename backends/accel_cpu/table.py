"""What a CPU does natively, what is emulated and what it cannot do; the collectives' cells come from the lowering
itself.
"""

from __future__ import annotations

from accel._lowering import cells
from accel.capabilities import Capability, CapabilityTable, emulated, native, unsupported
from accel.transport import Transport


def capabilities(transport: Transport) -> CapabilityTable:
    table: dict[str, Capability] = {
        "precision.fp32": native("IEEE fp32; oneDNN's TF32 and bf16 units are switched off"),
        "precision.tf32": native("oneDNN's TF32 where the processor has the unit, IEEE fp32 elsewhere"),
        "precision.bf16": native(
            "autocast to bfloat16; oneDNN computes it in fp32 where the processor has no bf16 unit"
        ),
        "precision.fp16": native(
            "autocast to float16 with loss scaling; oneDNN computes it in fp32 where the processor has no fp16 unit"
        ),
        "device.stream": emulated("operations have finished when their call returns; a stream orders nothing"),
        "device.event": emulated("records the host's clock"),
        "device.energy": emulated("the whole host's processors (RAPL); None where that is not there or root's alone"),
        "memory.allocated": unsupported("torch counts no live bytes of CPU tensors"),
        "memory.reserved": native("resident set of the process, from /proc/self/status"),
        "memory.peak_reset": native("Linux resets the peak resident set through /proc/self/clear_refs"),
        "memory.track": native("tensors that the block touches, counted by accel; buffers inside a kernel are not"),
        "memory.course": native("storages as the step's operations make and free them, counted by accel"),
        "memory.oom": unsupported("Linux ends a process that takes too much; searches keep to a budget instead"),
        "memory.snapshot": unsupported("torch keeps no allocation history of CPU tensors"),
        "memory.limit": unsupported("CPU tensors come from the C library, which takes no limit from torch"),
        "memory.pinned": unsupported("the host's memory is the device's: there is nothing to copy"),
        "train.fused_optimizer": native("torch's fused SGD, Adam, AdamW and Adagrad for CPU tensors"),
        "train.graphs": unsupported("a CPU has no launches to record"),
        "train.checkpoint": native("recomputed in backward; buffers are written once, dropout masks are replayed"),
        "prepare.compile": native("torch.compile with inductor; needs a C++ compiler"),
        "prepare.channels_last": native("on request; oneDNN lays out convolutions by itself, so it is not chosen"),
        "prepare.sync_batchnorm": unsupported("torch's SyncBatchNorm takes no CPU tensors"),
        "collective.processes": native("gloo between processes, over TCP"),
    }
    return CapabilityTable("cpu", {**table, **cells(transport)})
