"""Contract of bad calls between two ranks: the same error on both, nothing half-reduced, and the group goes on.

Each test runs one top-level function in two warm ranks; what it returns comes back by rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from accel.collective import Collective
from accel.errors import AccelError, CollectiveMismatch
from accel.testing.ranks import RankPool
from accel.testing.training import init


def _refused(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with init(name) as s:
        c, rank = s.backend.collective, s.rank
        t = torch.full((4,), rank + 1.0, device=s.device)
        alone = c.new_group([0])
        leaf = nn.Parameter(torch.ones(2, device=s.device))
        calls: dict[str, Callable[[], object]] = {
            "unknown op": lambda: c.all_reduce(t, "median"),
            "op of another type": lambda: c.all_reduce(t, ["sum"]),
            "root out of range": lambda: c.broadcast(t, src=2),
            "root below range": lambda: c.broadcast(t, src=-1),
            "root of another type": lambda: c.broadcast(t, src=True),
            "non-tensor": lambda: c.all_reduce([1.0, 2.0]),
            "group of another type": lambda: c.all_reduce(t, group="world"),
            "another device": lambda: c.all_reduce(torch.ones(4, device="meta")),
            "leaf": lambda: c.all_reduce(leaf),
            "rows": lambda: c.reduce_scatter(torch.ones(3, device=s.device)),
            "timeout": lambda: c.all_reduce(t, timeout=0.0),
            "peer out of range": lambda: c.send(t, dst=2),
            "many with a non-tensor": lambda: c.all_reduce_coalesced([t, None]),
        }
        spread = torch.ones(1, device=s.device).expand(3)
        if 0 in spread.stride():  # a lazy device has no memory to share
            calls["expanded"] = lambda: c.all_reduce(spread)
        if rank == 1:
            calls["group without this rank"] = lambda: c.all_reduce(t, group=alone)
        for what, call in calls.items():
            try:
                call()
                found[what] = "accepted"
            except AccelError as error:
                found[what] = f"{type(error).__name__}: {error}".replace(str(s.device), "the device")
        found["untouched"] = [t.tolist(), leaf.tolist()] == [[rank + 1.0] * 4, [1.0, 1.0]]
        c.all_reduce(t)
        found["usable"] = t.tolist()
    return found


def test_bad_arguments_give_one_error_on_all_ranks_and_touch_nothing(ranks: RankPool, backend_name: str) -> None:
    # T01, T06
    first, second = ranks.run(_refused, backend_name)
    assert "group '1: ranks 0' lacks this rank 1" in second.pop("group without this rank")
    assert first == second
    assert first.pop("untouched") is True
    assert first.pop("usable") == [3.0] * 4
    said = {
        "unknown op": "ArgumentError: op is 'median'",
        "op of another type": "ArgumentError: op is ['sum']",
        "root out of range": "ArgumentError: src is 2",
        "root below range": "ArgumentError: src is -1",
        "root of another type": "ArgumentError: src is True",
        "non-tensor": "TensorError",
        "group of another type": "ArgumentError: group is 'world'",
        "another device": "TensorError",
        "leaf": "TensorError",
        "rows": "TensorError",
        "timeout": "ArgumentError: timeout is 0.0",
        "peer out of range": "ArgumentError: dst is 2",
        "many with a non-tensor": "TensorError",
        "expanded": "TensorError",
    }
    for what, text in first.items():
        assert text.startswith(said[what]), f"{what}: {text}"


def _groups_that_differ(name: str) -> dict[str, Any]:
    with init(name, timeout=60.0) as s:
        c = s.backend.collective
        try:
            c.new_group([0] if s.rank == 0 else [0, 1])
            said = "made"
        except CollectiveMismatch as error:
            said = str(error)
        t = torch.ones(2, device=s.device)
        c.all_reduce(t, group=c.new_group([0, 1]))
        return {"said": said, "after": t.tolist()}


def test_ranks_that_want_other_groups_raise_together_and_go_on(ranks: RankPool, backend_name: str) -> None:  # T03
    first, second = ranks.run(_groups_that_differ, backend_name)
    assert first == second
    assert "rank 0: new_group([0]); rank 1: new_group([0, 1])" in first["said"]
    assert first["after"] == [2.0, 2.0]


def _mismatching(c: Collective, device: torch.device, what: str) -> torch.Tensor:
    t = torch.full((2, 3), c.rank + 1.0, device=device)
    if what == "shape":
        t = t if c.rank else t.reshape(3, 2)
    if what == "dtype":
        t = t if c.rank else t.to(torch.int32)
    try:
        if what == "kind" and c.rank:
            c.broadcast(t)
        else:
            c.all_reduce(t, "max" if what == "op" and c.rank else "sum")
    except CollectiveMismatch:
        return t
    raise AssertionError(f"{what}: no error")


def _mismatches(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with init(name, timeout=60.0) as s:
        c = s.backend.collective
        for what in ("shape", "dtype", "op", "kind"):
            t = _mismatching(c, s.device, what)
            ones = torch.ones(2, device=s.device)
            c.all_reduce(ones)
            found[what] = (t.flatten().tolist(), ones.tolist())
    return found


def test_ranks_that_differ_raise_together_before_anything_is_sent(ranks: RankPool, backend_name: str) -> None:  # T03
    for rank, found in enumerate(ranks.run(_mismatches, backend_name)):
        for what, (kept, after) in found.items():
            assert kept == [rank + 1.0] * 6, what
            assert after == [2.0, 2.0], what


def _recorded(name: str) -> list[tuple[str, bool]]:
    with init(name) as s:
        model = nn.Linear(4, 2)
        model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            s.backward(model(torch.ones(2, 4, device=s.device)).sum())
            s.step(optimizer)
        s.backend.collective.all_reduce(torch.ones(3, device=s.device), "max")
        s.barrier()
        entries = s._control.recorder.entries()
        reductions = [entry for entry in entries if entry.signature.kind == "gradients"]
        assert all(entry.file == __file__ for entry in (*reductions, *entries[-2:])), [e.site for e in entries]
        assert all(entry.end is not None and entry.end >= entry.start and not entry.failed for entry in entries)
        return [(str(entry), entry.end is not None) for entry in (*reductions, *entries[-2:])]


def test_each_step_makes_one_entry_for_its_gradients_in_the_flight_recorder(ranks: RankPool, backend_name: str) -> None:
    first, second = ranks.run(_recorded, backend_name)
    assert first == second
    words = [text for text, _ in first]
    assert sum("gradients(op=mean, dtype=float32, shape=[10])" in text for text in words) == 3
    assert "all_reduce(op=max, dtype=float32, shape=[3]) number" in words[-2]
    assert words[-1].startswith("barrier number")
