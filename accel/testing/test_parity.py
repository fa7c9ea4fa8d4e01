"""Contract of parity: training on a backend agrees with the CPU, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from accel import parity
from accel.testing.parity import record


@pytest.mark.parametrize("seed", [0, 1])
def test_training_agrees_with_the_cpu_layer_by_layer(backend: Any, tmp_path: Path, seed: int) -> None:
    here = record(tmp_path / "here", backend.name, seed=seed)
    cpu = record(tmp_path / "cpu", "cpu", seed=seed)
    found = parity.compare(cpu, here)
    assert found.agree, found.verdict
    assert found.blind_from is None
    assert max(found.curves["forward"].allowed) < 0.01
    assert here.run["backend"] == backend.name
    assert here.run["numerics"]["policy"] == "fp32"


def _masks(start: Any, p: float = 0.5) -> list[torch.Tensor]:
    session = start(seed=3)
    model = session.prepare(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(p)), host_dropout=True)
    x = torch.ones(64, 4, device=session.device)
    return [(model(x) != 0).cpu() for _ in range(2)]


def test_dropout_masks_are_the_same_on_every_backend_and_differ_between_calls(start: Any) -> None:  # T61
    first, second = _masks(start)
    again, _ = _masks(start)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert 0.35 < float(first.float().mean()) < 0.65
    # The bits of the first rows, whatever the backend and the version of torch.
    assert first[:2].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
