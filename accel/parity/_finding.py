"""Where two runs part, and what to look at first."""

from __future__ import annotations

from dataclasses import dataclass

DIRECTIONS = ("data", "start", "forward", "backward", "update")  # in the order of a step
_TF32 = (2.0**-14, 2.0**-8)  # relative differences that operands rounded to 10 or 11 bits of mantissa leave


@dataclass(frozen=True)
class Finding:
    """The first place where two runs differ by more than rounding explains.

    `direction`: "data", "start" (states before step 1), "forward", "backward" or "update". `layer`: a module's call, a
    parameter, or a word in brackets for what belongs to no layer. `step` counts from 1. Differences are relative.
    """

    step: int
    direction: str
    layer: str
    kind: str
    rank: int
    difference: float
    allowed: float
    what: str  # what differs, with both values where they are numbers
    hint: str

    @property
    def words(self) -> str:
        where = f"step {self.step}, {self.direction}, {self.layer}" + (f" ({self.kind})" if self.kind else "")
        return f"{where}, rank {self.rank}: {self.what}. {self.hint}"


def hint(direction: str, kind: str, difference: float, policy: str, world_size: int) -> str:
    """What to look at first; the difference itself says no more than where."""
    if direction == "start":
        return "The runs begin with other values: look at the seed, the initialisation and what was loaded"
    if kind == "buffer":
        return "No optimizer writes to it: look at its layer's momentum and mode, and at what it averages"
    if direction == "update":
        return "Look at the optimizer's settings (rate, momentum, weight decay, eps) and what else writes to it"
    if direction == "backward":
        ranks = "the reduction of gradients over ranks, " if world_size > 1 else ""
        return f"The forward agrees: look at {ranks}the loss's weight and scale, clipping, and frozen parameters"
    if "Dropout" in kind:
        return (
            "Another mask, or another p or mode: draw masks on the host to have the same on every backend "
            "(prepare(host_dropout=True))"
        )
    if "Norm" in kind:
        return "Look at its eps, its mode (train or eval) and what its statistics are taken over"
    if policy in ("fp32", "tf32") and _TF32[0] < difference < _TF32[1] and kind not in ("", "ReLU"):
        return (
            "A difference of this size is what operands rounded to TF32 or HF32 (2^-11) leave: read the switches "
            "back with describe()"
        )
    return "Look at this layer's dtype, settings and inputs"
