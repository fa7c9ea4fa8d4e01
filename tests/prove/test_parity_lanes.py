"""Long proofs of parity between backends: nothing is reported without a fault, over 20 seeds, and each planted fault
is found, with its layer and step.

Each backend's traces are recorded in its own environment (`parity_lane.py`); the record is
`docs/proofs/parity-lanes.json`. `python -m tests.prove.test_parity_lanes CPU OTHER...` judges folders of traces.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel import parity
from accel.testing.parity import FAULT_OF_RANKS, FAULTS, LATE_FAULTS
from tests.prove import records
from tests.prove.parity_lane import OTHER, PRECISIONS, STEPS
from tests.prove.test_parity import LANES, environment

SEEDS = 20
JOB = Path(__file__).with_name("parity_lane.py")
WANTED = {**FAULTS, **LATE_FAULTS, **FAULT_OF_RANKS}

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]


def judged(cpu: Path, other: Path) -> dict[str, Any]:
    """What the comparisons of the traces in two folders gave."""

    def compared(mine: str, theirs: str) -> parity.Comparison:
        return parity.compare(parity.read(cpu / mine), parity.read(other / theirs))

    seeds = []
    for seed in range(SEEDS):
        found = compared(f"seed-{seed}", f"seed-{seed}")
        seeds.append(
            {
                "agree": found.agree,
                "verdict": found.verdict,
                "nearest": {
                    word: {"difference": curve.differences[at], "allowed": curve.allowed[at], "step": at + 1}
                    for word, curve in found.curves.items()
                    if (at := curve.nearest) is not None
                },
                "told_until_step": (found.blind_from or STEPS + 1) - 1,
            }
        )
    faults = {}
    for fault in WANTED:
        if fault in FAULT_OF_RANKS:
            finding = compared("ranks-good", f"ranks-{fault}").finding
        else:
            finding = compared(f"good-{PRECISIONS.get(fault, 'fp32')}", f"fault-{fault}").finding
        faults[fault] = finding and {
            "step": finding.step, "direction": finding.direction, "layer": finding.layer, "said": finding.words
        }  # fmt: skip
    run = parity.read(other / "seed-0").run
    two, bf16 = compared("ranks-good", "ranks-good"), compared("good-bf16", "good-bf16")
    return {
        **{name: run[name] for name in ("origin", "device", "versions")},
        "steps": STEPS, "seeds": seeds, "faults": faults,
        "two_ranks": two.verdict, "two_ranks_agree": two.agree,
        "bf16": bf16.verdict, "bf16_agree": bf16.agree, "bf16_notes": bf16.notes,
    }  # fmt: skip


def check(lane: str, found: dict[str, Any]) -> None:
    assert [one["verdict"] for one in found["seeds"] if not one["agree"]] == [], lane
    assert found["two_ranks_agree"], found["two_ranks"]
    assert found["bf16_agree"], found["bf16"]
    for fault, where in WANTED.items():
        said = found["faults"][fault]
        assert said is not None, f"{lane}: {fault} is not found"
        assert (said["step"], said["direction"], said["layer"]) == where, f"{lane}: {fault}: {said['said']}"


def test_no_seed_is_reported_and_every_planted_fault_is(tmp_path: Path) -> None:
    for lane in ("cpu", OTHER, *LANES):
        command, environ = environment("cpu" if lane == OTHER else lane)
        done = subprocess.run(
            [*command, str(JOB), lane, str(tmp_path / lane), str(SEEDS)],
            env=environ, capture_output=True, text=True, timeout=2400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    against = {lane: judged(tmp_path / "cpu", tmp_path / lane) for lane in (OTHER, *LANES)}
    write(tmp_path / "cpu", against)
    for lane, found in against.items():
        check(lane, found)


def write(cpu: Path, against: dict[str, Any]) -> None:
    records.write("parity-lanes", cpu=parity.read(cpu / "seed-0").run["versions"], against=against)


if __name__ == "__main__":
    cpu, *others = map(Path, sys.argv[1:])
    measured = {other.name: judged(cpu, other) for other in others}
    write(cpu, measured)
    for name, one in measured.items():
        check(name, one)
