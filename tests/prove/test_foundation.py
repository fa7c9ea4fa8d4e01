"""Long proofs of what the README claims: the default schedule converges, a Session costs next to nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from accel.bench.overhead import measure

ROOT = Path(__file__).parents[2]
LIMIT = 15.0  # microseconds a step over a hand-written loop

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]


def test_the_default_schedule_on_digits_reaches_an_accuracy_above_095() -> None:
    command = [sys.executable, "examples/resnet50.py", "--data", "digits"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    accuracies = [float(number) for number in re.findall(r"accuracy (\d\.\d+)", done.stdout)]
    assert accuracies[-1] > 0.95, done.stdout


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_session_adds_at_most_15_microseconds_to_a_step(precision: str) -> None:
    median, low, high = measure(precision).interval("accel")
    assert high <= LIMIT, f"median {median:.1f} us, 95 % from {low:.1f} to {high:.1f} us"
