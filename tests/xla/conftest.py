"""Tests of what only torch_xla does; they run in its environment, with `--backend xla`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--backend") != "xla" else None


@pytest.fixture
def compiles(backend: Any) -> Any:
    """Graphs compiled since the test began."""
    before = backend.device.counters()["compiles"]
    return lambda: backend.device.counters()["compiles"] - before


@pytest.fixture
def runs(backend: Any) -> Any:
    """Graphs run since the test began."""
    from torch_xla.debug import metrics

    def count() -> int:
        backend.device.synchronize()  # a run is counted when it ends
        data = metrics.metric_data("ExecuteTime")
        return int(data[0]) if data else 0

    before = count()
    return lambda: count() - before
