"""The functions of torch_npu that the NPU backend calls exist, with those signatures, from oldest to newest release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.npu import vendor_calls

pytestmark = [pytest.mark.prove, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", ["2.9.0", "2.13.0", "2.14.0"])
def test_every_vendor_call_exists_in_the_wheel(version: str, tmp_path: Path) -> None:
    ask = ("--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--dest", str(tmp_path))
    download = [sys.executable, "-m", "pip", "download", "--quiet", *ask, f"torch_npu=={version}"]
    done = subprocess.run(download, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("torch_npu-*.whl")
    assert vendor_calls.wrong(vendor_calls.in_wheel(wheel)) == []
