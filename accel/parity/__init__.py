"""Parity: what two runs of the same training computed, layer by layer, and the first place where they part.

`record` runs a training script and writes a trace; `compare` sets two traces side by side. The mathematics of what
rounding may explain is `_tolerance`'s, the files are `_trace`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accel.parity._compare import Comparison, compare
from accel.parity._finding import Finding
from accel.parity._trace import Trace, read

if TYPE_CHECKING:
    from accel.parity._record import record

__all__ = ["Comparison", "Finding", "Trace", "compare", "read", "record"]


def __getattr__(name: str) -> Any:
    if name != "record":  # recording needs torch, comparing does not
        raise AttributeError(f"module 'accel.parity' has no attribute {name!r}")
    from accel.parity._record import record

    return record
