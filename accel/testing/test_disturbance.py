"""What a device says of its clock and its users: known, or unknown with a reason; and warm-up on a real device."""

from __future__ import annotations

import time

import torch

from accel.backend import Backend
from accel.bench._timing import measure


def test_a_device_tells_what_disturbs_it_or_why_not(backend: Backend) -> None:
    found = backend.device.disturbance()
    for name in ("throttled", "processes"):
        assert (getattr(found, name) is None) is (name in found.reasons)
        assert found.reasons.get(name, "known")
    assert found.processes is None or found.processes >= 1


def test_warm_up_goes_on_until_the_step_time_is_still(backend: Backend) -> None:
    """On the device itself, with its own counters: two long steps first, as caches and clocks make them."""
    x = torch.ones(8, 8, device=backend.device.torch_device)
    delays = [0.6, 0.3]

    def step() -> int:
        time.sleep(delays.pop(0) if delays else 0.1)
        x.add_(1)
        return 1

    found = measure(step, backend.device, steps=2, repeats=1, warmup=1)
    assert len(found.warmup) >= 4  # long, shorter, shorter still, and one that is not
    assert found.warmup[-1] >= 0.9 * min(found.warmup[:-1]) or found.warnings
    assert len(found.seconds[0]) == 2
