"""A host that comes 20 s late is waited for, though a rank may be silent for 10 s only: what waits is the rendezvous.

With its own launch agent on each of three hosts, which are network namespaces of this machine; the suite does the same
with 5 s (tests/multihost).
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from accel.testing import hosts
from tests.multihost.cluster import Cluster

LATE = 20.0  # seconds
TIMEOUT = 10.0  # of the session, seconds

pytestmark = [pytest.mark.prove, pytest.mark.timeout(400)]


@pytest.mark.parametrize("late", [0, 2])  # host 0 holds the rendezvous
def test_a_host_that_comes_20_seconds_late_is_waited_for(tmp_path: Path, late: int) -> None:
    reason = hosts.why_not()
    if reason is not None:
        pytest.skip(reason)
    with hosts.Hosts(3) as network:
        job = Cluster(network, tmp_path, 3, steps=5, timeout=TIMEOUT)
        try:
            job.launch(*(host for host in range(3) if host != late))
            time.sleep(LATE)
            assert all(agent.poll() is None for agent in job.agents.values()), job.told()
            assert not any(job.news(rank) for rank in range(3)), job.told()
            job.launch(late)
            assert job.codes(200, 0, 1, 2) == [0, 0, 0], job.told()
            for rank in range(3):
                news = job.news(rank)
                assert sorted(news[0].split()[1:]) == network.addresses
                assert news[-1] == job.total()
        finally:
            job.close()
