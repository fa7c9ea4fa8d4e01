"""`CUDA_VISIBLE_DEVICES`: each form, and each way to get it wrong, before CUDA cuts the list without a word."""

from __future__ import annotations

import pytest

from accel.errors import BackendError
from accel_cuda.device import check_code
from accel_cuda.nvml import Gpu
from accel_cuda.visible import visible


def gpu(uuid, mig=None):
    return Gpu("NVIDIA A100-SXM4-80GB", uuid, (8, 0), mig)


PLAIN = [gpu("GPU-aa10"), gpu("GPU-aa20"), gpu("GPU-bb30")]
CUT = [gpu("GPU-aa10"), gpu("GPU-cc40", ("MIG-1111", "MIG-2222"))]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ["GPU-aa10", "GPU-aa20", "GPU-bb30"]),
        ("2,0", ["GPU-bb30", "GPU-aa10"]),
        (" 1 ", ["GPU-aa20"]),
        ("GPU-bb,GPU-aa1", ["GPU-bb30", "GPU-aa10"]),
    ],
)
def test_lists_that_cuda_takes_whole(value, expected):  # T31
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [one.uuid for one in visible(PLAIN, environ)] == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0,1,3", r"\(entry '3'\): the driver lists 3 GPU\(s\); expected an index up to 2"),
        ("3", r"expected an index up to 2"),
        ("0,0", r"\(entry '0'\): it stands there twice"),
        ("a,b", r"\(entry 'a'\): expected an index from 0"),
        ("0,,1", r"\(entry ''\)"),
        ("0,-1", r"only one form"),
        ("GPU-zz", r"no GPU has such a UUID; the driver lists GPU-aa10, GPU-aa20, GPU-bb30"),
        ("GPU-aa", r"2 GPUs have a UUID that starts so"),
        ("0,GPU-aa10", r"only one form"),
        ("MIG-9999", r"no such MIG device; the driver lists none"),
        ("MIG-GPU-aa10/1/0", r"no GPU has such a MIG device"),
    ],
)
def test_lists_that_cuda_would_cut_are_refused(value, words):  # T31
    with pytest.raises(BackendError, match=words) as caught:
        visible(PLAIN, {"CUDA_VISIBLE_DEVICES": value})
    assert f"CUDA_VISIBLE_DEVICES={value!r}" in str(caught.value)
    assert "nvidia-smi -L" in str(caught.value)


def test_mig_devices_by_uuid():  # T31
    assert visible(CUT, {"CUDA_VISIBLE_DEVICES": "MIG-2222"}) == [CUT[1]]
    assert visible(CUT, {"CUDA_VISIBLE_DEVICES": "MIG-GPU-cc40/1/0"}) == [CUT[1]]
    with pytest.raises(BackendError, match="no such MIG device; the driver lists MIG-1111, MIG-2222"):
        visible(CUT, {"CUDA_VISIBLE_DEVICES": "MIG-3333"})
    with pytest.raises(BackendError, match="one MIG device; start one process for each"):
        visible(CUT, {"CUDA_VISIBLE_DEVICES": "MIG-1111,MIG-2222"})


def test_without_the_variable_mig_leaves_whole_gpus_or_one_device():
    assert visible(CUT, {}) == [CUT[0]]
    assert visible(CUT[1:], {}) == [CUT[1]]
    empty = [gpu("GPU-dd50", ())]
    with pytest.raises(BackendError, match="none has a MIG device; make one"):
        visible(empty, {})
    with pytest.raises(BackendError, match="MIG is on for GPU 0 and it has no MIG device"):
        visible(empty, {"CUDA_VISIBLE_DEVICES": "0"})


@pytest.mark.parametrize("built", [["sm_75", "sm_90"], ["sm_86"], ["sm_90", "compute_90"]])
def test_a_gpu_that_the_build_has_no_code_for_is_named(built):
    with pytest.raises(BackendError, match=r"NVIDIA A100 has compute capability 8\.0 and torch .* has code for sm_"):
        check_code("NVIDIA A100", (8, 0), built)
