"""A job over several hosts, each with its own agent, when a link, an agent or a rank fails, stops or is late."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from accel._agent import LIMIT
from tests.multihost.cluster import Cluster, named

TIMEOUT = 6.0  # of the session, seconds
MARGIN = 5.0  # seconds beyond it within which every survivor says what is wrong
FOREVER = 10_000  # steps that no test waits for

pytestmark = pytest.mark.timeout(280)


def _break(job: Cluster, fault: str) -> None:
    if fault == "cut":
        job.hosts.cut(1)
    elif fault == "stopped":
        job.kill(job.pid(1), signal.SIGSTOP)
    else:
        job.kill(job.agents[1].pid if fault == "agent" else job.pid(1), signal.SIGKILL)


@pytest.mark.parametrize("fault", ["cut", "stopped", "killed", "agent"])
def test_survivors_say_what_is_wrong_within_the_timeout(cluster: Callable[..., Cluster], fault: str) -> None:
    job = cluster(2, steps=FOREVER, timeout=TIMEOUT)
    job.launch()
    job.reached(3)
    since = time.time()
    _break(job, fault)
    job.until(lambda: any(line.startswith("error ") for line in job.news(0)), TIMEOUT + MARGIN + 5)
    seconds, error = job.error(0, since)
    assert seconds <= TIMEOUT + MARGIN, job.told()
    assert error.startswith("Collective"), error
    assert named(error, 1), error
    assert job.codes(60, 0)[0] != 0, job.told()
    if fault == "cut":  # the host that is cut off has lost the store, and its rank is blocked in asking it
        job.until(lambda: "rank 1 ends with exit code 1: rank 1 has waited" in job.told(), 2 * (TIMEOUT + MARGIN))
        assert "number" in job.told().partition("rank 1 ends with exit code 1")[2], job.told()
        assert job.codes(LIMIT + 20, 1) == [1], job.told()  # torch's own agent waits minutes for the rendezvous
        assert f"still waits for an answer from the rendezvous at {job.hosts.addresses[0]}:29400" in job.told()


def test_a_late_host_and_a_slow_link_are_waited_for(cluster: Callable[..., Cluster]) -> None:
    job = cluster(3, steps=3, timeout=60.0)
    job.hosts.shape(2, 500_000)  # bytes/s: each step's 400 kB take seconds
    job.launch(0, 1)
    time.sleep(5.0)
    job.launch(2)
    assert job.codes(150, 0, 1, 2) == [0, 0, 0], job.told()
    for rank in range(3):
        news = job.news(rank)
        assert sorted(news[0].split()[1:]) == job.hosts.addresses
        assert news[-1] == job.total()
