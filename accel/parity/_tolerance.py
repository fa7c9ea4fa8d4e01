"""How far two correct runs may lie apart: from the dtype, the number of accumulated operations, and what came before.

All differences are 2-norms relative to the norm of what is compared.

1. Own rounding. An element that is a sum of n terms is known to `SIGMAS * (u_out + u_sum * sqrt(n))`: u is the unit
   roundoff of the dtype that the result is rounded to (2^-24 fp32, 2^-11 fp16, 2^-8 bf16), u_sum that of the
   accumulator (fp32 for the half types, which all our backends accumulate in fp32) or of the operands where the policy
   rounds them (tf32: 2^-11, or 2^-8 on a chip that multiplies in bf16). Roundings are taken as independent, so that n
   of them grow as sqrt(n) and not as n (Higham and Mary, https://doi.org/10.1137/18M1226312).
2. What came before. A layer whose inputs or parameters already differ by d may differ by `AMPLIFY * d` more: the test
   is local, so that ordinary rounding that training itself amplifies is not taken for a fault, and what jumps is.
3. Kinks. An element that rounding moves across a kink (ReLU, maximum) flips its derivative. k flips among n active
   elements change what flows back by about sqrt(k / n) of its norm, and `AMPLIFY` times that in one layer's gradient.
   Flips at ReLUs are counted from the traces. Where a kink is not recorded, and forward values differ by d, its flips
   are binomial: n * d of them are expected, and `flips` is what chance alone does not exceed. An adaptive optimizer
   divides by the gradient's own size, which is a kink at 0: its updates differ by sqrt(d) of theirs.
"""

from __future__ import annotations

import math
from typing import Any

SIGMAS = 6.0  # of the rounding's spread; at 6, chance alone exceeds it once in 10^8
AMPLIFY = 8.0  # by which one layer may magnify a relative difference of its inputs
SLIGHT = 1e-3  # a gradient below this share of the step's whole gradient carries little of it, and may be all rounding
BLIND = 0.1  # above this tolerance a comparison says nothing

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
ARITHMETIC = {"fp32": 2.0**-24, "tf32": 2.0**-11, "hf32": 2.0**-12, "bf16": 2.0**-8, "fp16": 2.0**-11}


def operand_roundoff(numerics: dict[str, Any]) -> float:
    """By how much products round their operands under the recorded policy; only "tf32" allows more than fp32 does."""
    if numerics["policy"] != "tf32":
        return ROUNDOFF["float32"]
    return ARITHMETIC.get(str(numerics.get("arithmetic")), ARITHMETIC["tf32"])


def rounding(dtype: str, terms: int, operands: float) -> float:
    """Relative difference that the rounding of sums of `terms` terms explains."""
    out = ROUNDOFF.get(dtype, ROUNDOFF["float32"])
    products = operands if operands > ROUNDOFF["float32"] else min(out, ROUNDOFF["float32"]) * math.sqrt(max(1, terms))
    return SIGMAS * (out + products)


def flips(elements: int, difference: float) -> float:
    """The elements of `elements` that may lie on the other side of a kink where values differ by `difference`.

    The mean and `SIGMAS` deviations of a Poisson count; 2 more, since of fewer than one expected two still may come:
    at a mean of 10^-3 a third has probability 10^-10.
    """
    mean = elements * min(1.0, difference)
    return min(float(elements), mean + SIGMAS * math.sqrt(mean) + 2) if mean > 0 else 0.0


def terms_of(module: Any, inputs: Any, output: Any) -> int:
    """Numbers that `module` adds up for one element of `output`, from its type and shapes.

    A module of an unknown type that keeps the shape and has no parameters works element by element; of any other, all
    elements of a sample may be in each sum.
    """
    kind = type(module).__name__
    weight: Any = getattr(module, "weight", None)
    if kind.startswith(("ConvTranspose", "LazyConvTranspose")):
        return int(weight.numel() // output.shape[1])
    if kind.startswith("Conv") and weight is not None:
        return int(weight[0].numel())
    if kind in ("Linear", "NonDynamicallyQuantizableLinear", "Bilinear"):
        return int(weight.numel() // weight.shape[0])
    if "BatchNorm" in kind:
        return max(1, int(inputs.numel() // inputs.shape[1]))
    if kind == "Embedding":
        return 1
    if "Pool" in kind:
        return max(1, int(inputs.numel() // max(1, output.numel())))
    if inputs.shape == output.shape and weight is None and not list(module.children()):
        return 1
    return max(1, int(inputs.numel() // max(1, len(inputs)))) if inputs.dim() else 1
