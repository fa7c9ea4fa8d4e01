"""ResNet-50 with its activations kept and recomputed: the same parameters, and the fall of the peak; a program.

    python tests/prove/recomputed.py 64              # on a CPU, tracked
    accel emulate npu -- python tests/prove/recomputed.py 64

The argument is the side of the images in px. The last line is a JSON object.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone

import torch

import accel
from accel.testing.planned import Case

BATCH, STEPS = 64, 5


def main(size: int) -> None:
    runs, plans = {}, {}
    for checkpoint in (False, True):
        case = Case("resnet50", size=size, batch=BATCH, checkpoint=checkpoint)
        with accel.init() as session:
            runs[checkpoint] = case.measured(session, STEPS)
            plans[checkpoint] = case.planned(session.backend)
            backend = session.backend
    plain, less = runs[False], runs[True]
    print(
        json.dumps(
            {
                "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
                "backend": backend.name,
                "origin": backend.origin,
                "versions": backend.versions,
                "work": f"resnet50, {size} px, batch {BATCH}, fp32, SGD with momentum, {STEPS} steps",
                "tensors_compared": len(plain.state),
                "largest_difference": max(
                    float((plain.state[name].double() - less.state[name].double()).abs().max()) for name in plain.state
                ),
                "equal": all(torch.equal(plain.state[name], less.state[name]) for name in plain.state),
                "peak_bytes": {"plain": plain.peak, "checkpointed": less.peak},
                "planned_bytes": {"plain": plans[False].peak_allocated, "checkpointed": plans[True].peak_allocated},
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
