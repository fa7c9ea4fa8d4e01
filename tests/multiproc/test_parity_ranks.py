"""Parity over ranks: each rank's part is in the trace, and a reduction that is missing is named."""

from __future__ import annotations

from accel import parity
from accel.testing.parity import FAULT_OF_RANKS, record
from accel.testing.ranks import RankPool


def _record(out: str, fault: str, seed: int) -> str:
    return record(out, "cpu", fault=fault, steps=3, seed=seed).path


def test_a_missing_reduction_is_named_against_a_good_run_and_within_the_run_itself(tmp_path):
    with RankPool(2) as ranks:
        for name, fault, seed in (("good", "", 0), ("again", "", 0), ("bad", "reduction", 0)):
            ranks.run(_record, str(tmp_path / name), fault, seed)
    good, again, bad = (parity.read(tmp_path / name) for name in ("good", "again", "bad"))
    assert len(good.ranks) == 2
    assert (good.ranks[0]["inputs"] != good.ranks[1]["inputs"]).any()  # each rank has its own samples
    dropout = [layer.name for layer in good.layers].index("dropout")
    assert (good.ranks[0]["forward"][0, dropout] != good.ranks[1]["forward"][0, dropout]).any()
    assert parity.compare(good, again).agree
    step, direction, layer = FAULT_OF_RANKS["reduction"]
    for a, b in ((good, bad), (bad, bad)):
        found = parity.compare(a, b).finding
        assert found is not None
        assert (found.step, found.direction) == (step, direction)
        assert found.layer in (layer, "fc.bias")
        assert "reduc" in found.hint
