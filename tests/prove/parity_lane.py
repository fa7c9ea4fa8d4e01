"""`parity_lane.py LANE OUT SEEDS`: record the traces that the proofs of parity compare, in a lane's environment.

A lane is a backend, or "cpu-other-kernels": the CPU without oneDNN, whose sums come in another order. `seed-N` and
`good-PRECISION` are without a fault, `fault-NAME` with one planted, `ranks-...` of two ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

from accel.testing.parity import FAULTS, LATE_FAULTS, other_kernels, record, record_here
from accel.testing.ranks import RankPool

STEPS = 20
OTHER = "cpu-other-kernels"
PRECISIONS = {"dtype": "bf16"}  # of a fault, where it is not fp32


def main(lane: str, out: Path, seeds: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if lane == OTHER:
        with other_kernels():
            _record("cpu", out, seeds)
    else:
        _record(lane, out, seeds)


def _record(backend: str, out: Path, seeds: int) -> None:
    for seed in range(seeds):
        record(out / f"seed-{seed}", backend, seed=seed, steps=STEPS)
    for precision in ("fp32", "bf16"):
        record(out / f"good-{precision}", backend, precision=precision)
    for fault in (*FAULTS, *LATE_FAULTS):
        record(out / f"fault-{fault}", backend, fault=fault, precision=PRECISIONS.get(fault, "fp32"))
    with RankPool(2, backend=backend) as ranks:
        for name, fault in (("good", ""), ("reduction", "reduction")):
            ranks.run(record_here, str(out / f"ranks-{name}"), backend, {"fault": fault}, timeout=300)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
