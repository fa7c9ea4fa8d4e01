"""Energy: joules that grow where they are counted, None where they are not; never a 0 for unknown."""

from __future__ import annotations

from accel.backend import Backend
from accel.capabilities import Support


def test_energy_is_a_counter_or_unknown(backend: Backend) -> None:
    first, second = backend.device.energy(), backend.device.energy()
    cell = backend.capabilities().get("device.energy")
    if cell is None or cell.support is Support.UNSUPPORTED:
        assert first is None
        return
    assert (first is None) is (second is None)
    assert first is None or second is None or 0 < first <= second
