"""The verdict of `accel compare` on real runs: the same benchmark again and again, and with a delay planted in some.

Every run is a process of its own with its own record. Runs with and without the delay alternate, so that a machine that
drifts does so for both. The record is `docs/proofs/compare-runs.json`; `python tests/prove/test_compare_runs.py` writes
it, on a machine that should do nothing else.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from accel import records
from accel.compare import compare
from accel.records import Record

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "proofs" / "compare-runs.json"
PAIRS = 6
PLANTED = 0.10  # of the step time
# s of every step of every run, those without the delay too: it stands for a device of constant speed. Steps that are
# the CPU's alone vary by more than a tenth where the machine has neighbours; 0 is for one that has none.
WAIT = 0.5
# Small enough for a dozen runs in minutes.
BENCH = ["--model=resnet18", "--size=32", "--batch=2", "--steps=4", "--repeats=5", "--warmup=3"]

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]


def delayed(seconds: float, arguments: list[str]) -> None:
    """`accel bench resnet50 ARGUMENTS` with a wait of `seconds` in each optimizer step."""
    from accel.session import Session

    step = Session.step

    def slower(self: Session, *rest: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return step(self, *rest, **options)

    Session.step = slower  # type: ignore[method-assign]
    sys.argv = ["accel", "bench", "resnet50", *arguments]
    from accel.cli import main

    main()


def run(folder: Path, name: str, seconds: float) -> Record:
    out = folder / f"{name}.json"
    command = [sys.executable, str(Path(__file__)), "run", str(seconds), *BENCH, "--out", str(out)]
    path = os.pathsep.join(part for part in sys.path if part)
    # One thread: two that share a core with another process wait for each other at each barrier.
    environ = {**os.environ, "ACCEL_BACKEND": "cpu", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return records.read(out)


def series(folder: Path, pairs: int) -> None:
    """Plain and delayed runs, alternating, in `folder`; the delay is a tenth of what a first run's step took."""
    run(folder, "first", WAIT)  # files come from the disk this once
    step = run(folder, "second", WAIT).results.step_time.value
    assert step is not None
    for number in range(pairs):
        run(folder, f"plain-{number}", WAIT)
        run(folder, f"slow-{number}", WAIT + step * PLANTED)


def judged(baseline: list[Record], other: list[Record]) -> tuple[str | None, list[float]]:
    """What is said of `other` against `baseline`, runs of one kind each."""
    report = compare([*baseline, *other])
    entry = next(entry for entry in report.entries if entry.record is other[0])
    return entry.verdict, list(entry.ratio_interval)  # type: ignore[arg-type]


def summary(plain: list[Record], slow: list[Record]) -> dict[str, Any]:
    same = [judged([a], [b]) for a, b in itertools.combinations(plain, 2)]
    planted = [judged([a], [b]) for a, b in zip(plain, slow, strict=True)]
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "command": "accel bench resnet50 " + " ".join(BENCH),
        "chip": plain[0].hardware.chip.value,
        "versions": plain[0].versions,
        "planted": PLANTED,
        "wait": {"unit": "s", "value": WAIT},
        "throughput": {
            "unit": "images/s",
            "plain": [record.results.throughput.value for record in plain],
            "delayed": [record.results.throughput.value for record in slow],
        },
        "other_load": {"unit": "cores", "plain": _seen(plain, "other_load"), "delayed": _seen(slow, "other_load")},
        "cpu_wait": {"unit": "fraction", "plain": _seen(plain, "cpu_wait"), "delayed": _seen(slow, "cpu_wait")},
        "same against same": [{"verdict": verdict, "ratio": interval} for verdict, interval in same],
        "delayed against plain": [{"verdict": verdict, "ratio": interval} for verdict, interval in planted],
    }


def _seen(runs: list[Record], name: str) -> list[float | None]:
    """A figure of what disturbed each run."""
    return [getattr(record.disturbance, name).value for record in runs]


def of(folder: Path) -> dict[str, Any]:
    """The summary of the pairs that `series` left in `folder`."""
    slow = sorted(folder.glob("slow-*.json"))
    return summary(
        [records.read(path.with_name(path.name.replace("slow", "plain"))) for path in slow],
        [records.read(path) for path in slow],
    )


@pytest.mark.parametrize("part", ["same against same", "delayed against plain"])
def test_the_committed_record_shows_what_the_documentation_says(part: str) -> None:
    found = json.loads(RECORD.read_text())
    verdicts = [one["verdict"] for one in found[part]]
    assert set(verdicts) == {"no significant difference" if part == "same against same" else "slower"}


def test_the_same_benchmark_twice_does_not_differ_and_a_planted_delay_is_found(tmp_path: Path) -> None:
    series(tmp_path, 3)
    found = of(tmp_path)
    assert {one["verdict"] for one in found["same against same"]} == {"no significant difference"}, found
    assert {one["verdict"] for one in found["delayed against plain"]} == {"slower"}, found
    for one in found["delayed against plain"]:
        low, high = one["ratio"]
        assert low < 1 / (1 + PLANTED) < high


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        delayed(float(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["of"]:  # FOLDER: that of an earlier run
        RECORD.write_text(json.dumps(of(Path(sys.argv[2])), indent=1) + "\n")
    else:  # [PAIRS [FOLDER]]
        pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
        series(folder, pairs)
        RECORD.write_text(json.dumps(of(folder), indent=1) + "\n")
