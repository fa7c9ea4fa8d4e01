"""Compilation ahead of time: a training step compiled by the real TPU compiler with no TPU at hand.

`export` records one optimizer step as a `Program` (it needs torch_xla), `Compiler` compiles it for a topology such as
"v5e:2x2" (it needs a Python with jax and libtpu, which may be another one), and `largest_batch` searches the batch that
still fits. What comes out is predicted: it says that a step compiles, what memory it needs and what it moves, and
nothing of its speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accel.aot._compiler import Compiled, Compiler, Shortage, Topology
from accel.aot._fit import Fit, largest_batch
from accel.aot._program import Program

if TYPE_CHECKING:
    from accel.aot._export import export

__all__ = ["Compiled", "Compiler", "Fit", "Program", "Shortage", "Topology", "export", "largest_batch"]


def __getattr__(name: str) -> Any:
    if name != "export":
        raise AttributeError(f"module 'accel.aot' has no attribute {name!r}")
    from accel.aot._export import export  # imports torch

    return export
