"""The emulated runtime under the released torch_npu: memory, streams, devices, and what a 910B refuses."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest

MIB = 1 << 20
RACE = """
import torch, torch_npu
side, wrong = torch.npu.Stream(), {False: 0, True: 0}
for waits in (False, True):
    for _ in range(10):
        a = torch.full((1 << 14,), 1.0, device="npu")
        for _ in range(5):
            a = a + 1
        if waits:
            side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            b = a * 2
        side.synchronize()
        wrong[waits] += int((b.cpu() != 12).any())
        torch.npu.synchronize()
print(wrong[False], wrong[True])
"""


def test_out_of_memory_is_torchs_own_error_and_leaves_the_device_usable(python: Any) -> None:
    code = """
import torch, torch_npu
kept = torch.ones(64 << 20, dtype=torch.uint8, device="npu")
print(torch.npu.mem_get_info()[1])
try:
    torch.empty(256 << 20, dtype=torch.uint8, device="npu")
except torch.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
print(int(kept.sum(dtype=torch.int64)), torch.npu.memory_stats()["num_ooms"])
"""
    lines = python(code, ACCEL_EMULATE_NPU_HBM=str(256 * MIB)).stdout.splitlines()
    assert lines[0] == str(256 * MIB)
    assert "NPU out of memory" in lines[1]
    assert "256.00 MiB" in lines[1]
    assert lines[2] == f"{64 * MIB} 1"


def test_expandable_segments_use_the_virtual_memory_interface(python: Any) -> None:
    code = """
import torch, torch_npu
parts = [torch.full((5 << 20,), float(n), device="npu") for n in range(4)]
print([int(part[-1]) for part in parts], any(s["is_expandable"] for s in torch.npu.memory_snapshot()))
del parts
torch.npu.empty_cache()
print(torch.npu.memory_reserved())
"""
    lines = python(code, PYTORCH_NPU_ALLOC_CONF="expandable_segments:True").stdout.splitlines()
    assert lines == ["[0, 1, 2, 3] True", "0"]


def test_a_missing_stream_wait_gives_a_wrong_answer_in_threaded_mode_and_the_right_code_does_not(python: Any) -> None:
    done = python(RACE, ACCEL_EMULATE_NPU_MODE="threaded", ACCEL_EMULATE_NPU_JITTER="2000")
    without, with_wait = map(int, done.stdout.split())
    assert without > 0
    assert with_wait == 0


def test_immediate_mode_runs_in_program_order(python: Any) -> None:
    assert python(RACE, ACCEL_EMULATE_NPU_MODE="immediate").stdout.split() == ["0", "0"]


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("0", 1), ("0,2", 2), ("1,3", 2), ("", 0), ("2,1", 1), ("0,0", 1), ("0,9", 1), ("a", 0), ("0,b", 1)],
)
def test_visible_devices_end_at_the_first_bad_id(visible: str | None, count: int) -> None:
    code = (
        "import ctypes, os; library = ctypes.CDLL(os.environ['ACCEL_EMULATE_NPU_LIBRARIES'] + '/libascendcl.so')\n"
        "count = ctypes.c_uint32(); library.aclrtGetDeviceCount(ctypes.byref(count)); print(count.value)"
    )
    environ = {**os.environ, "ACCEL_EMULATE_NPU_DEVICES": "4"}
    environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)
    if visible is not None:
        environ["ASCEND_RT_VISIBLE_DEVICES"] = visible
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert int(done.stdout) == count


def test_entry_points_that_nothing_emulates_say_so() -> None:
    library = ctypes.CDLL(os.environ["ACCEL_EMULATE_NPU_LIBRARIES"] + "/libascendcl.so")
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    assert library.rtKernelLaunch() != 0
    assert library.aclGetRecentErrMsg() == b"the NPU emulator does not implement rtKernelLaunch"
    assert library.aclrtSetDevice(99) == 107001
    assert b"99" in library.aclGetRecentErrMsg()


def test_what_a_910b_refuses_is_refused() -> None:
    import torch
    import torch_npu  # noqa: F401 - where torch does not load it by itself

    def product(dtype: torch.dtype) -> None:
        square = torch.ones(2, 2, dtype=dtype, device="npu")
        torch.mm(square, square)
        torch.npu.synchronize()

    with pytest.raises(RuntimeError, match="not implemented for Double, should be in dtype support list"):
        product(torch.float64)
    with pytest.raises(RuntimeError, match="not implemented for Int"):
        product(torch.int32)
