"""Collectives when peers are late, dead or give up: the right error, soon, and no process that cannot end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch

from accel.errors import CollectiveError, CollectiveTimeout
from accel.testing.ranks import RankPool, outcomes
from tests.multiproc.jobs import collective


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def _late_rank(what: str) -> None:
    with collective(timeout=2.0) as c:
        t = torch.ones(3)
        pair = c.new_group([0, 1])
        group = pair if what == "sub-group" else None
        c.all_reduce(t, group=group)
        c.barrier()
        if c.rank == 1:
            time.sleep(4.0)
            return
        late = {"barrier": c.barrier, "recv": lambda: c.recv(t, src=1)}.get(what, lambda: c.all_reduce(t, group=group))
        began = time.monotonic()
        with pytest.raises(CollectiveTimeout, match=r"2 s.* rank 0|rank 0.* 2 s") as caught:
            late()
        assert 1.9 < time.monotonic() - began < 3.0
        names = {
            "barrier": "barrier",
            "recv": "recv(",
            "sub-group": "'1: ranks 0, 1'",
            "all_reduce": "all_reduce(op=sum",
        }
        assert names[what] in str(caught.value)
        if what in ("all_reduce", "sub-group"):
            assert "no sign of rank 1" in str(caught.value)


@pytest.mark.parametrize("what", ["barrier", "all_reduce", "sub-group", "recv"])
def test_timeout_names_operation_group_rank_and_limit(pool: RankPool, what: str) -> None:  # T38
    pool.run(_late_rank, what)


def _wait_again() -> None:
    with collective() as c:
        t = torch.ones(3)
        c.all_reduce(t, "mean")
        c.barrier()
        t *= c.rank + 1
        if c.rank == 1:
            time.sleep(1.2)
        work = c.all_reduce(t, "mean", async_op=True)
        if c.rank == 0:
            for limit in (0.3, timedelta(milliseconds=300)):
                with pytest.raises(CollectiveTimeout):
                    work.wait(timeout=limit)
        assert work.result().tolist() == [1.5] * 3
        if c.rank == 1:
            time.sleep(1.2)
            c.send(t, dst=0)
        else:
            work = c.recv(torch.zeros(3), src=1, async_op=True)
            with pytest.raises(CollectiveTimeout):
                work.wait(timeout=0.3)
            assert work.result().tolist() == [1.5] * 3


def test_a_wait_that_timed_out_may_be_repeated(pool: RankPool) -> None:
    pool.run(_wait_again)


def _dying_peer(how: str) -> str:
    with collective() as c:
        t = torch.ones(3)
        c.all_reduce(t)
        if c.rank == 1:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(7)
        with pytest.raises(CollectiveError) as caught:
            c.all_reduce(t)
        return str(caught.value)


@pytest.mark.parametrize(("how", "code"), [("kill", -signal.SIGKILL), ("exit", 7)])
def test_a_peer_that_dies_is_noticed_at_once(how: str, code: int) -> None:  # T39
    survivor, dead = outcomes(_dying_peer, 2, how, timeout=20.0)
    assert survivor.kind == "result", survivor.text
    assert "all_reduce(op=sum" in survivor.value
    assert "peer" in survivor.value
    assert (dead.kind, dead.value) == ("exit", code)


def _giving_up() -> None:
    with collective() as c:
        t = torch.ones(3)
        c.all_reduce(t)
        c.barrier()
        if c.rank == 1:
            c.abort("RuntimeError: no more data")
            time.sleep(1.5)
            return
        with pytest.raises(CollectiveError, match="rank 1 aborted: RuntimeError: no more data"):
            c.all_reduce(t)


def test_abort_ends_the_collectives_of_the_others(pool: RankPool) -> None:
    pool.run(_giving_up)


def _leave_with_an_operation_in_flight() -> None:
    with collective(timeout=300.0) as c:
        t = torch.ones(3)
        c.all_reduce(t)
        c.barrier()
        if c.rank == 1:
            time.sleep(60.0)
        with pytest.raises(CollectiveTimeout):
            c.all_reduce(t, timeout=1.0)
    raise SystemExit(3)


def test_a_process_can_end_while_an_operation_hangs() -> None:  # T39
    left, _ = outcomes(_leave_with_an_operation_in_flight, 2, timeout=8.0)
    assert (left.kind, left.value) == ("exit", 3), left.text
