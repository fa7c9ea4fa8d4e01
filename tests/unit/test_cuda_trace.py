"""A ResNet-50 training step on fake tensors of device type cuda: the dtypes that reach each kind of operation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent / "cuda_trace"
LOW = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    guard = tmp_path_factory.mktemp("guard") / "guard.so"
    torch_root = Path(torch.__file__).parent
    command = ["g++", "-std=c++17", "-O0", "-w", "-shared", "-fPIC", f"-I{torch_root / 'include'}"]
    source = [str(HERE / "guard.cpp"), f"-L{torch_root / 'lib'}", "-lc10", "-o", str(guard)]
    subprocess.run([*command, *source], check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, HERE / "step.py", guard], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


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
