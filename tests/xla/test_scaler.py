"""Loss scaling inside the graph. TPUs have no float16 and sessions no scaler there; this shows that one could do
without the host's read that an eager boundary makes.
"""

from __future__ import annotations

import math

import pytest
import torch

import accel
from accel.capabilities import CapabilityTable, native
from accel.errors import UnsupportedError
from accel.precision import LossScale
from accel.scaler import Scaler

CONFIG = LossScale(init=1024.0, interval=2)
GRADIENTS = [1.0, 2.0, math.inf, 3.0, math.nan, 1.0, 1.0, 1.0]


def on_the_host():
    """Scales and parameter after each step, by the scaler of eager backends."""
    scaler, weight, seen = Scaler(CONFIG, torch.device("cpu")), torch.ones(3), []
    for value in GRADIENTS:
        grad = torch.full((3,), value) * scaler.tensor
        skipped = bool(scaler.unscale([grad], None).item())
        if not skipped:
            weight = weight - 0.1 * grad
        scaler.update(skipped)
        seen.append((scaler.scale, weight.tolist()))
    return seen


def test_scaling_in_the_graph_equals_the_hosts_and_reads_nothing(start, runs):
    session = start()
    device = session.backend.device
    scale, good = torch.tensor(CONFIG.init).to(session.device), torch.tensor(0, dtype=torch.int32).to(session.device)
    weight, kept = torch.ones(3).to(session.device), []
    values = [torch.full((3,), value).to(session.device) for value in GRADIENTS]
    device.flush()
    before = runs(), device.host_reads(), device.counters()["fallbacks"]
    for value in values:
        grad = value * scale
        found = torch.zeros((), device=session.device)
        torch._amp_foreach_non_finite_check_and_unscale_([grad], found, scale.reciprocal())
        weight = torch.where(found > 0, weight, weight - 0.1 * grad)
        torch._amp_update_scale_(scale, good, found, CONFIG.growth, CONFIG.backoff, CONFIG.interval)
        kept.append((scale.clone(), weight))
        device.flush()
    assert (runs() - before[0], device.host_reads(), device.counters()["fallbacks"]) == (len(values), *before[1:])
    for (scale, weight), (expected, row) in zip(kept, on_the_host(), strict=True):
        assert scale.item() == expected
        torch.testing.assert_close(weight.cpu(), torch.tensor(row))


@pytest.mark.parametrize("has_units", [False, True], ids=["without-float16", "with-float16"])
def test_fp16_is_refused_before_anything_is_set(backend, has_units, monkeypatch):
    """Also on a chip with float16 units: an eager scaler would cut the step's graph to read its flag."""
    table = dict(backend.capabilities())
    if has_units:
        monkeypatch.setattr(
            type(backend),
            "capabilities",
            lambda self: CapabilityTable("xla", {**table, "precision.fp16": native("units")}),
        )
    before = backend.precision.describe()["switches"]
    said = "lazy device, and loss scaling reads a flag" if has_units else r"precision\.fp16.*TPUs have no float16 units"
    with pytest.raises(UnsupportedError, match=said):
        accel.init(backend="xla", precision="fp16")
    assert backend.precision.describe()["switches"] == before
