"""Contract of parity over ranks: a job's trace agrees with that of as many CPU processes, and each rank's part is in
it.
"""

from __future__ import annotations

from pathlib import Path

from accel import parity
from accel.testing.parity import FAULT_OF_RANKS, record_here
from accel.testing.ranks import RankPool

STEPS = 3


def _traced(ranks: RankPool, out: Path, backend: str, fault: str = "") -> parity.Trace:
    paths = ranks.run(record_here, str(out), backend, {"steps": STEPS, "fault": fault}, timeout=120)
    assert paths == [str(out)] * 2
    return parity.read(out)


def test_ranks_agree_with_the_cpus_and_a_missing_reduction_is_named(
    ranks: RankPool, backend_name: str, tmp_path: Path
) -> None:  # T13, T24
    with RankPool(2, backend="cpu", env={"ACCEL_BACKEND": "cpu"}) as processes:
        cpu = _traced(processes, tmp_path / "cpu", "cpu")
    here = _traced(ranks, tmp_path / "here", backend_name)
    assert here.run["backend"] == backend_name
    assert len(here.ranks) == 2
    assert (here.ranks[0]["inputs"] != here.ranks[1]["inputs"]).any(), "each rank has samples of its own"
    dropout = [layer.name for layer in here.layers].index("dropout")
    masks = [rank["forward"][0, dropout] for rank in here.ranks]
    assert (masks[0] != masks[1]).any(), "each rank has a mask of its own"
    agreed = parity.compare(cpu, here)
    assert agreed.agree, agreed.verdict
    bad = _traced(ranks, tmp_path / "bad", backend_name, "reduction")
    for reference in (cpu, bad):  # also within one trace, as ranks that hold different gradients
        found = parity.compare(reference, bad).finding
        assert found is not None
        assert (found.step, found.direction) == FAULT_OF_RANKS["reduction"][:2]
        assert found.layer in ("fc.weight", "fc.bias")
        assert "reduc" in found.hint
