"""TF32 and its two interfaces, determinism, the table by chip, and which layout convolutions get."""

from __future__ import annotations

import os
import warnings

import pytest
import torch

from accel.errors import UnsupportedError
from accel.precision import POLICIES, Precision
from accel_cuda.numerics import UNREADABLE, CudaNumerics
from accel_cuda.table import capabilities
from accel_cuda.transport import CudaTransport

FP32 = ("cuda.matmul.fp32_precision", "cudnn.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision")
OLD = ("cuda.matmul.allow_tf32", "cudnn.allow_tf32")


@pytest.fixture
def numerics(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    one = CudaNumerics((8, 0))
    found = one.snapshot()
    yield one
    one.restore()
    one.put_back(found)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_both_interfaces_say_what_the_policy_says(numerics, policy, deterministic):
    before = numerics.read()
    numerics.apply(policy, deterministic)
    now = numerics.read()
    assert {now[name] for name in FP32} == {"tf32" if policy == "tf32" else "ieee"}
    assert {now[name] for name in OLD} == {str(policy == "tf32")}
    assert now["cudnn.benchmark"] == str(not deterministic)
    assert now["cudnn.deterministic"] == now["deterministic_algorithms"] == str(deterministic)
    assert torch.backends.cudnn.allow_tf32 is (policy == "tf32")  # what inductor reads does not raise
    assert torch.get_float32_matmul_precision() in (("high", "medium") if policy == "tf32" else ("highest",))
    numerics.restore()
    assert numerics.read() == before


def test_convolutions_are_tf32_out_of_the_box_and_fp32_switches_it_off(numerics):
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    numerics.apply("fp32", False)
    assert numerics.read()["cudnn.conv.fp32_precision"] == "ieee"


@pytest.mark.parametrize("policy", ["fp32", "tf32"])
def test_settings_that_a_user_had_mixed_are_put_back_as_they_were(numerics, policy):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    before = numerics.read()
    assert before["cuda.matmul.allow_tf32"] == UNREADABLE
    numerics.apply(policy, False)
    assert UNREADABLE not in numerics.read().values()
    numerics.restore()
    assert numerics.read() == before


def test_determinism_gives_cublas_its_workspace_and_keeps_the_users(numerics, monkeypatch):
    numerics.apply("fp32", False)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    numerics.restore()
    numerics.apply("fp32", True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    numerics.restore()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    numerics.apply("fp32", True)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert "CUBLAS" not in numerics.determinism()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    assert "CUBLAS_WORKSPACE_CONFIG=:0:0 as the user set it, which is not deterministic" in numerics.determinism()
    numerics.restore()
    assert numerics.determinism() is None


def test_a_chip_without_bf16_refuses_it_and_says_what_tf32_is_there():
    table = capabilities(CudaTransport(), (7, 0))
    with pytest.raises(UnsupportedError, match="no bfloat16 units.*use fp16"):
        Precision(CudaNumerics((7, 0)), table).apply("bf16")
    with pytest.raises(UnsupportedError, match="compute capability 7.0"):
        CudaNumerics((7, 0)).set("bf16", False)
    assert table["precision.tf32"].support.value == "emulated"
    assert table["precision.fp16"].support.value == "native"
    assert capabilities(CudaTransport(), (8, 0))["precision.bf16"].support.value == "native"


@pytest.mark.parametrize(
    ("capability", "chosen"), [((9, 0), ["tf32", "bf16", "fp16"]), ((7, 0), ["tf32", "bf16", "fp16"]), ((6, 1), [])]
)
def test_channels_last_is_chosen_where_tensor_cores_compute(capability, chosen):
    assert [policy for policy in POLICIES if CudaNumerics(capability).channels_last(policy)] == chosen


def test_the_table_lists_what_the_cpus_lists():
    from accel_cpu.table import capabilities as of_cpu
    from accel_cpu.transport import CpuTransport

    assert set(capabilities(CudaTransport(), (9, 0))) == set(of_cpu(CpuTransport()))
