"""A ResNet-50 training step on fake tensors of device type cuda: the dtypes that reach each kind of operation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cuda_trace.run import run_trace

LOW = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    return run_trace(tmp_path_factory.mktemp("guard"))


@pytest.mark.parametrize("policy", LOW)
def test_convolutions_and_the_last_layer_compute_in_the_policys_dtype(traced, policy):
    assert traced[policy]["convolution"] == traced[policy]["linear"] == traced[policy]["logits"] == [[LOW[policy]]]


@pytest.mark.parametrize("policy", LOW)
def test_batchnorm_takes_the_policys_dtype_and_keeps_its_own_in_fp32(traced, policy):  # T68
    assert traced[policy]["batch_norm"] == [list(dict.fromkeys([LOW[policy], "float32"]))]
    assert traced[policy]["statistics"] == [["float32"]]


@pytest.mark.parametrize("policy", LOW)
def test_loss_gradients_and_optimizer_stay_in_fp32(traced, policy):
    found = traced[policy]
    assert found["loss"] == found["optimizer"] == found["parameters"] == [["float32"]]
    assert found.get("unscale") == ([["float32"]] if policy == "fp16" else None)


def test_the_table_of_dtypes_is_what_the_trace_gives(traced):
    part = json.loads((Path(__file__).parents[2] / "docs" / "tables" / "dtypes-cuda.json").read_text())
    assert {policy: traced[policy]["cells"] for policy in LOW} == part, "run `python .ci/table_dtypes.py cuda`"
