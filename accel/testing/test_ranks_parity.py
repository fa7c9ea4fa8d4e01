"""Contract of parity over ranks: a job's trace agrees with that of as many CPU processes, and each rank's part is in
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accel import parity
from accel.testing.parity import FAULT_OF_RANKS, record_here
from accel.testing.ranks import RankPool


@pytest.fixture(scope="module")
def on_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> parity.Trace:
    out = str(tmp_path_factory.mktemp("parity") / "cpu")
    with RankPool(2, backend="cpu", env={"ACCEL_BACKEND": "cpu"}) as ranks:
        paths = ranks.run(record_here, out, "cpu", {"steps": 4}, timeout=120)
    assert paths == [out] * 2
    return parity.read(out)


def test_training_on_ranks_agrees_with_the_cpus(
    ranks: RankPool, backend_name: str, on_the_cpu: parity.Trace, tmp_path: Path
) -> None:  # T24
    ranks.run(record_here, str(tmp_path / "t"), backend_name, {"steps": 4}, timeout=120)
    here = parity.read(tmp_path / "t")
    assert here.run["backend"] == backend_name
    assert len(here.ranks) == len(on_the_cpu.ranks) == 2
    assert (here.ranks[0]["inputs"] != here.ranks[1]["inputs"]).any(), "each rank has samples of its own"
    dropout = [layer.name for layer in here.layers].index("dropout")
    masks = [rank["forward"][0, dropout] for rank in here.ranks]
    assert (masks[0] != masks[1]).any(), "each rank has a mask of its own"
    found = parity.compare(on_the_cpu, here)
    assert found.agree, found.verdict


def test_a_missing_reduction_is_named(
    ranks: RankPool, backend_name: str, on_the_cpu: parity.Trace, tmp_path: Path
) -> None:  # T13, T24
    arguments: dict[str, Any] = {"steps": 4, "fault": "reduction"}
    ranks.run(record_here, str(tmp_path / "t"), backend_name, arguments, timeout=120)
    here = parity.read(tmp_path / "t")
    for reference in (on_the_cpu, here):  # also within one trace, as ranks that hold different gradients
        found = parity.compare(reference, here).finding
        assert found is not None
        assert (found.step, found.direction) == FAULT_OF_RANKS["reduction"][:2]
        assert found.layer in ("fc.weight", "fc.bias")
        assert "reduc" in found.hint
