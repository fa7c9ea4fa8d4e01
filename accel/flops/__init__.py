"""Work of a training step, counted by tracing it on fake tensors: multiply-adds, FLOPs, element operations and bytes.

One multiply-add (MAC) is two FLOPs; both are given and always named. Nothing here touches an accelerator or allocates a
model's memory, so that any batch size can be counted anywhere.
"""

from __future__ import annotations

from accel.flops._trace import CASTS, PHASES, Operation, Tally, Trace, trace

__all__ = ["CASTS", "PHASES", "Operation", "Tally", "Trace", "trace"]
