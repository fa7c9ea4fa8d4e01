"""Memory of a training step before it runs: parameters, gradients, optimizer state, activations, the peak, what fits.

The step is traced on fake tensors: no hardware is touched and no tensor takes memory, so any model can be planned for
any chip anywhere.
"""

from __future__ import annotations

from accel.allocator import EXACT, Allocator
from accel.plan._plan import HEADROOM, Plan, plan
from accel.plan._trace import trace

__all__ = ["EXACT", "HEADROOM", "Allocator", "Plan", "plan", "trace"]
