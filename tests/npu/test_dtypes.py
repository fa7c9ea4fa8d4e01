"""The committed table of dtypes is what torch_npu gives on emulated NPUs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_dtypes_is_what_this_lane_gives():
    spec = importlib.util.spec_from_file_location("table_dtypes", ROOT / ".ci" / "table_dtypes.py")
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    assert table.measured("npu") == table.committed("npu"), "run `python .ci/table_dtypes.py npu` in this lane"
