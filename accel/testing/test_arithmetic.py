"""A backend says what its matrix products are computed in, read back from the switches that are in force."""

from __future__ import annotations

from typing import Any

import pytest

from accel.precision import POLICIES
from accel.testing.dtypes import traced
from accel.testing.test_precision import needs

# What a policy may mean on a chip; None: the backend cannot tell whether the chip has the unit that was allowed.
_MEANS: dict[str, set[str | None]] = {
    "fp32": {"fp32"},
    "tf32": {"tf32", "hf32", "bf16", "fp32", None},
    "bf16": {"bf16"},
    "fp16": {"fp16"},
}


# T25: the peak of another arithmetic would be the denominator of the utilisation otherwise.
@pytest.mark.parametrize("policy", POLICIES)
def test_arithmetic_in_force_is_recorded(backend: Any, start: Any, policy: str) -> None:
    needs(backend, policy)
    said = start(precision=policy).backend.precision.describe()
    assert said["arithmetic"] in _MEANS[policy]


# In every policy: products in the policy's dtype, and what adds up many numbers or is squared in fp32.
@pytest.mark.parametrize("policy", POLICIES)
def test_operations_run_in_the_dtype_that_the_policy_says(backend: Any, start: Any, policy: str) -> None:  # T68
    needs(backend, policy)
    seen = traced(start(precision=policy))
    low = {"bf16": "bfloat16", "fp16": "float16"}.get(policy, "float32")
    assert seen["convolution"] == seen["linear"] == low
    assert seen["BatchNorm"] in {"float32", f"{low}, parameters float32"}
    assert seen["LayerNorm"] == seen["optimizer"] == "float32"
    assert seen["softmax"] in {"float32", f"{low}, result float32"}
    assert seen["loss"] in {"float32", f"{low} and float32"}
