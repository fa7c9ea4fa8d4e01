"""Contract of work handles and groups between two ranks: what a wait means, what survives a dropped handle, groups used
in turn, sessions one after the other, and a rank that leaves.

Each test runs one top-level function in two warm ranks; what it returns comes back by rank. Whether a wait blocked is
told by what the late rank wrote into the store before it came, not by a clock.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from accel.errors import AccelError, ArgumentError, CollectiveError, CollectiveMismatch
from accel.testing.ranks import RankPool
from accel.testing.training import init

_LATE = 0.5  # seconds that rank 1 comes later


def _after_the_late_rank(name: str, host: bool) -> tuple[bool, list[float], list[float]]:
    with init(name) as s:
        c, store = s.backend.collective, s._control.store
        t = torch.full((1000,), s.rank + 1.0, device=s.device)
        c.all_reduce(torch.ones(1, device=s.device))
        s.barrier()
        if s.rank == 1:
            time.sleep(_LATE)
            store.set("late rank comes", "")
        work = c.all_reduce(t, async_op=True)
        work.wait(host=host)
        came = store.check(["late rank comes"])
        double = t * 2  # of the reduced values, wherever the wait has put it in order
        assert work.result() is t
        assert work.done()
        return came, double.unique().tolist(), t.unique().tolist()


def test_a_wait_of_the_host_blocks_until_the_last_rank_has_come(ranks: RankPool, backend_name: str) -> None:
    assert ranks.run(_after_the_late_rank, backend_name, True) == [(True, [6.0], [3.0])] * 2


def test_a_plain_wait_orders_what_follows_after_the_result(ranks: RankPool, backend_name: str) -> None:
    for _, double, reduced in ranks.run(_after_the_late_rank, backend_name, False):
        assert (double, reduced) == ([6.0], [3.0])


def _dropped(name: str) -> tuple[list[list[float]], list[float], list[float]]:
    with init(name) as s:
        c = s.backend.collective
        matrix = torch.tensor([[1.0 + s.rank, -1.0], [3.0 + s.rank, -1.0]], device=s.device)
        half = torch.full((3,), 60000.0, dtype=torch.float16, device=s.device)
        c.all_reduce(matrix[:, 0], "mean", async_op=True)  # the view and the handle are gone at once
        c.all_reduce(half, "mean", async_op=True)  # travels in another dtype, and must come back
        gc.collect()
        many = [torch.full((8,), float(i), device=s.device) for i in range(20)]
        for t in many:
            c.all_reduce(t, async_op=True)
        gc.collect()
        c.all_reduce(matrix[:, 0])  # after the first, not instead of it
        c.all_reduce(matrix[:, 0], async_op=True)  # complete when the session is closed, at the latest
    return matrix.tolist(), half.tolist(), [float(t[-1]) for t in many]


def test_dropping_a_handle_does_not_drop_the_reduction(ranks: RankPool, backend_name: str) -> None:
    for matrix, half, many in ranks.run(_dropped, backend_name):
        assert matrix == [[6.0, -1.0], [14.0, -1.0]]
        assert half == [60000.0] * 3
        assert many == [2.0 * i for i in range(20)]


def _in_turn(name: str) -> dict[str, Any]:
    with init(name) as s:
        c, rank = s.backend.collective, s.rank
        alone, other, both, again = (c.new_group(members) for members in ([0], [1], [0, 1], [1, 0]))
        mine, theirs = (alone, other) if rank == 0 else (other, alone)
        found: dict[str, Any] = {"ranks": [group.ranks for group in (alone, other, both, again)]}
        t = torch.ones(3, device=s.device)
        for group in (both, mine, again, None, mine, both, again):  # they overlap, each with numbers of its own
            c.all_reduce(t, group=group)
        found["sum"] = t.tolist()
        works = [c.all_gather(torch.full((1,), rank + i, device=s.device), group, async_op=True) for i, group in
                 enumerate((again, mine, both))]  # fmt: skip
        found["gathered"] = [work.result().flatten().tolist() for work in reversed(works)]
        refused: dict[str, Callable[[], object]] = {
            "reduce": lambda: c.all_reduce(t, group=theirs),
            "gather": lambda: c.all_gather(t, group=theirs),
            "root": lambda: c.broadcast(t, src=1 - rank, group=mine),
        }
        for what, call in refused.items():
            try:
                call()
            except AccelError as error:
                found[what] = f"{type(error).__name__}: {error}"
        try:
            c.all_reduce(torch.ones(4 + rank, device=s.device), group=both)
        except CollectiveMismatch as error:
            found["mismatch"] = str(error)
        c.all_reduce(t, group=both)  # usable after all of it
        found["after"] = t.tolist()
        return found


def test_overlapping_groups_are_used_in_turn_and_one_that_lacks_this_rank_is_refused(
    ranks: RankPool, backend_name: str
) -> None:
    found = ranks.run(_in_turn, backend_name)
    assert found[0]["mismatch"] == found[1]["mismatch"]
    assert "group '3: ranks 0, 1'" in found[0]["mismatch"]
    for rank, got in enumerate(found):
        assert got["ranks"] == [(0,), (1,), (0, 1), (0, 1)]
        assert got["sum"] == [32.0] * 3
        assert got["gathered"] == [[2, 3], [rank + 1], [0, 1]]
        lacking = f"group '{2 - rank}: ranks {1 - rank}' lacks this rank {rank}"
        assert got["reduce"].startswith(f"ArgumentError: {lacking}")
        assert got["gather"].startswith(f"ArgumentError: {lacking}")
        assert got["root"].startswith(f"ArgumentError: src is {1 - rank}; expected a global rank of group")
        assert got["after"] == [64.0] * 3


def _again(name: str) -> list[Any]:
    found: list[Any] = []
    former: Any = None
    for turn in range(3):
        with init(name) as s:
            c = s.backend.collective
            if former is not None:
                try:
                    c.all_reduce(torch.ones(1, device=s.device), group=former)
                except ArgumentError as error:
                    found.append("another session" in str(error))
            former = c.new_group([0, 1])
            t = torch.full((2,), turn + 1.0, device=s.device)
            c.all_reduce(c.all_gather(t, former).result(), group=former)
            found.append(c.all_reduce(t).result().tolist())
        try:
            c.all_reduce(t)
        except CollectiveError as error:
            found.append("destroyed" in str(error))
    return found


def test_a_process_starts_anew_after_its_session_is_closed(ranks: RankPool, backend_name: str) -> None:
    turns = [[2.0, 2.0], True, True, [4.0, 4.0], True, True, [6.0, 6.0], True]
    assert ranks.run(_again, backend_name) == [turns] * 2


def _swapped(name: str) -> tuple[list[str], list[float], list[float]]:
    with init(name, check="every") as s:
        c = s.backend.collective
        a, b = torch.ones(2, device=s.device), torch.ones(2, device=s.device)
        calls: list[Callable[[], object]] = [lambda: c.all_reduce(a), lambda: c.all_reduce(b, "max")]
        for call in calls:  # both are known, so that only their order is wrong
            call()
        errors = []
        for call in calls if s.rank == 0 else reversed(calls):
            try:
                call()
            except CollectiveMismatch as error:
                errors.append(str(error))
        c.all_reduce(b)
        return errors, a.tolist(), b.tolist()


def test_two_operations_in_another_order_raise_one_error_on_both_ranks(ranks: RankPool, backend_name: str) -> None:
    first, second = ranks.run(_swapped, backend_name)
    assert first == second
    assert len(first[0]) == 2
    assert "rank 0: all_reduce(op=sum" in first[0][0]
    assert "rank 1: all_reduce(op=max" in first[0][0]
    assert first[1:] == ([2.0, 2.0], [2.0, 2.0])  # neither was reduced, and the group goes on


def _leaves_early(name: str) -> str:
    try:
        with init(name, timeout=20.0) as s:
            t = torch.ones(1, device=s.device)
            s.backend.collective.all_reduce(t)
            if s.rank == 1:
                return "left"
            s.backend.collective.all_reduce(t).wait(host=True)
    except CollectiveError as error:
        return str(error)
    return "nothing"


def test_a_rank_that_leaves_early_is_named_to_the_one_that_goes_on(ranks: RankPool, backend_name: str) -> None:
    first, second = ranks.run(_leaves_early, backend_name)
    assert second == "left"
    assert "rank 1" in first, first
