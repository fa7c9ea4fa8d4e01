"""Tests on several hosts: network namespaces of this machine; skipped where the user may not make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accel.testing import hosts
from tests.multihost.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """`cluster(count, steps=..., timeout=...)`: hosts with a job that is not launched yet."""
    reason = hosts.why_not()
    if reason is not None:
        pytest.skip(reason)
    made: list[tuple[hosts.Hosts, Cluster]] = []

    def make(count: int, *, steps: int, timeout: float) -> Cluster:
        network = hosts.Hosts(count)
        network.__enter__()
        made.append((network, Cluster(network, tmp_path, count, steps=steps, timeout=timeout)))
        return made[-1][1]

    yield make
    for network, job in made:
        job.close()
        network.close()
