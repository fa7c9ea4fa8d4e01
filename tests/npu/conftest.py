"""Tests of what only Ascend NPUs do; they run on emulated ones, under `accel emulate npu`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMPLAINT = "Warning: ASCEND_HOME_PATH environment variable is not set.\n"  # torch_npu says so on standard output
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--backend") != "npu" else None


@pytest.fixture
def python() -> Run:
    """Run a piece of Python in a process of its own, on the emulated NPUs with these settings; its output is text."""

    def run(
        code: str, *, check: bool = True, timeout: float = 120, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        environ = {
            **os.environ,
            **settings,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        done.stdout = done.stdout.replace(COMPLAINT, "")
        return done

    return run
