"""Runs `step.py` in a process of its own, with the device guard that fake tensors of type cuda need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def run_trace(folder: Path) -> dict[str, dict[str, Any]]:
    """What `step.py` found, by policy. `folder` takes the compiled guard."""
    guard = folder / "guard.so"
    torch_root = Path(torch.__file__).parent
    command = ["g++", "-std=c++17", "-O0", "-w", "-shared", "-fPIC", f"-I{torch_root / 'include'}"]
    source = [str(HERE / "guard.cpp"), f"-L{torch_root / 'lib'}", "-lc10", "-o", str(guard)]
    subprocess.run([*command, *source], check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, HERE / "step.py", guard], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found
