"""Long proofs of parity: nothing is reported without a fault, over many seeds, and ResNet-50 agrees between backends.

The record is `docs/proofs/parity-resnet50.json`; `python tests/prove/test_parity.py CPU NPU XLA` writes it from traces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest

from accel import parity
from accel.testing.parity import other_kernels, record

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "proofs" / "parity-resnet50.json"
TRAINED = ("--model", "resnet50", "--steps", "20", "--size", "64", "--seed", "0")
EMULATED = ("-m", "accel", "emulate", "npu", "--")
LANES = {
    "npu": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    "xla": {"PJRT_DEVICE": "CPU", "XLA_FLAGS": "--xla_backend_optimization_level=0"},
}

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_reported_where_only_the_order_of_sums_differs(tmp_path: Path, seed: int) -> None:
    mine = record(tmp_path / "a", "cpu", seed=seed, steps=20)
    with other_kernels():
        other = record(tmp_path / "b", "cpu", seed=seed, steps=20)
    found = parity.compare(mine, other)
    assert found.agree, found.verdict


@pytest.mark.parametrize("lane", LANES)
def test_resnet50_agrees_with_the_cpu_over_20_steps(tmp_path: Path, lane: str) -> None:
    for one in ("cpu", lane):
        _trace(one, tmp_path / one)
    found = parity.compare(parity.read(tmp_path / "cpu"), parity.read(tmp_path / lane))
    assert found.agree, found.verdict
    assert sum(file.stat().st_size for file in (tmp_path / lane).iterdir()) < 10_000_000


def environment(lane: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs python in a lane's environment, and the variables it runs with."""
    if lane == "cpu":
        return [sys.executable], {**os.environ, "ACCEL_BACKEND": lane}
    python = ROOT / ".venvs" / lane / "bin" / "python"
    assert python.exists(), f"make its environment first: .venvs/tools/bin/nox -s {lane}"
    through = (str(python), *EMULATED) if lane == "npu" else ()
    return [*through, str(python)], {**os.environ, "ACCEL_BACKEND": lane, **LANES[lane]}


def _trace(lane: str, out: Path) -> None:
    python, environ = environment(lane)
    command = [*python, "-m", "accel", "parity", "record", *TRAINED, "--out", str(out)]
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def summary(cpu: str, *others: str) -> dict[str, object]:
    """What the comparisons gave, for the record."""
    mine = parity.read(cpu)
    found = {Path(other).name: parity.compare(mine, parity.read(other)) for other in others}
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "trained": list(TRAINED),
        "against": {"origin": mine.run["origin"], "versions": mine.run["versions"], "device": mine.run["device"]},
        "comparisons": {
            name: {
                "origin": one.b.run["origin"],
                "versions": one.b.run["versions"],
                "agree": one.agree,
                "verdict": one.verdict,
                "differences": {word: curve.differences for word, curve in one.curves.items()},
                "allowed": {word: curve.allowed for word, curve in one.curves.items()},
            }
            for name, one in found.items()
        },
    }


if __name__ == "__main__":
    RECORD.write_text(json.dumps(summary(*sys.argv[1:]), indent=1) + "\n")
