"""A part of the conformance suite with a thread for each stream and random pauses: a wait that accel leaves out gives
a wrong answer there (`test_emulator_runtime.py` shows that it does).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What copies beside the computation, what reduces between ranks, and what reads a result on the host.
ORDERED = (
    "work_on_another_stream", "batches_copied_ahead", "accumulation_equals", "fused_optimizers", "timing_events",
    "two_ranks_equal", "clipping_uses", "averaged_once", "strided_views", "nan_reaches", "statistics_are_equal",
    "overflow_on_one_rank", "mean_of_fp16",
)  # fmt: skip


def test_the_ordered_part_of_the_contract_holds_in_threaded_mode() -> None:
    environ = {**os.environ, "ACCEL_EMULATE_NPU_MODE": "threaded", "ACCEL_EMULATE_NPU_JITTER": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--backend=npu",
         "tests/contract/test_contract.py", "-k", " or ".join(ORDERED)],
        cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 25, done.stdout
