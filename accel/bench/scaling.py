"""`accel bench resnet50 --devices 1,2,4`: the same benchmark on several numbers of devices, one launch after another.

Each launch writes its own record, as it would by itself; how they scale is what `accel compare` says of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from accel import records
from accel.errors import ArgumentError, LaunchError


def parse(text: str) -> list[int]:
    """`1,2,4` as numbers of devices. Raises `ArgumentError` unless they are two or more, from 1 on, ascending."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if len(counts) < 2 or counts[0] < 1 or sorted(set(counts)) != counts:
        raise ArgumentError(f"--devices is {text!r}; expected two or more numbers in ascending order, such as 1,2,4")
    return counts


def run(counts: Sequence[int], arguments: Sequence[str], out: str) -> list[records.Record]:
    """Run `accel bench ARGUMENTS` on each number of devices; the records that they left in the folder `out`.

    Raises `ArgumentError` for an `out` that is one file, `LaunchError` when a launch fails, which ends the series.
    """
    if out.endswith(".json"):
        raise ArgumentError(f"--out is {out!r}, one file; expected a folder, as --devices makes a record a number")
    folder = Path(out)
    found = []
    for count in counts:
        before = set(folder.glob("*.json"))
        launch = [sys.executable, "-m", "accel", "launch", "--nproc", str(count), "-m", "accel", "bench", *arguments]
        code = subprocess.run(launch, check=False).returncode
        if code != 0:
            raise LaunchError(f"the run on {count} devices ended with exit code {code}; its own error is above")
        found += [records.read(path) for path in sorted(set(folder.glob("*.json")) - before)]
    return found
