"""Contract of `Session.batches`, the sampler and laps in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from accel.errors import (
    ArgumentError,
)
from accel.testing.models import data
from accel.testing.training import prepared, run


def test_batches_arrive_on_the_device_in_their_structure(start: Any) -> None:
    session = start()
    batch = {"x": torch.ones(2), "more": [torch.zeros(1), (torch.ones(1), "text", None)], "n": 3}
    (moved,) = session.batches([batch], train=False)
    assert moved["x"].device.type == moved["more"][1][0].device.type == session.device.type
    assert moved["more"][1][1:] == ("text", None)
    assert moved["n"] == 3


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_every_batch_comes_once_in_order(start: Any, prefetch: int) -> None:
    session = start()
    for count in (0, 1, 2, 5):
        batches = [torch.tensor([float(i)]) for i in range(count)]
        for arguments in ({"train": True}, {"train": False}):
            seen = [int(b) for b in session.batches(iter(batches), prefetch=prefetch, **arguments)]
            assert seen == list(range(count))


def test_skip_and_steps_limit_the_pass_and_take_no_more(start: Any) -> None:
    session = start()
    taken = []

    def stream() -> Any:
        for i in range(1000):
            taken.append(i)
            yield torch.tensor([float(i)])

    assert [int(b) for b in session.batches(stream(), skip=2, steps=3)] == [2, 3, 4]
    assert taken == [0, 1, 2, 3, 4]
    assert [int(b) for b in session.batches(stream(), train=False, skip=1, steps=2)] == [1, 2]


@pytest.mark.parametrize(
    "bad", [{"skip": -1}, {"steps": 0}, {"steps": -3}, {"prefetch": 0}, {"epoch": -1}, {"skip": 1.5}, {"train": "yes"}]
)
def test_bad_argument_of_batches_is_named(start: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        start().batches([1], **bad)


def test_loader_that_is_none_is_named(start: Any) -> None:
    with pytest.raises(ArgumentError, match="loader=int"):
        list(start().batches(3))


def test_epoch_reaches_every_set_epoch_and_counts_by_itself(start: Any) -> None:
    session = start()
    dataset = TensorDataset(torch.arange(16.0))
    loader = DataLoader(dataset, batch_size=4, sampler=session.sampler(dataset))

    def order(**arguments: Any) -> list[float]:
        return [v for (b,) in session.batches(loader, **arguments) for v in b.tolist()]

    first, second = order(epoch=0), order(epoch=1)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(16))
    assert order(epoch=0) == first
    counted = [order() for _ in range(2)]
    assert counted[0] == second
    assert counted[0] != counted[1]


def test_sampler_of_an_iterable_dataset_is_refused(start: Any) -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(ArgumentError, match="map-style"):
        start().sampler(Stream())


def test_samplers_share_has_no_duplicates_on_any_world_size() -> None:  # T19
    from accel._sampler import ShardedSampler

    for count in (0, 1, 4, 5, 17):
        for world in (1, 2, 3, 4):
            for shuffle in (True, False):
                samplers = [
                    ShardedSampler(range(count), rank=r, world_size=world, shuffle=shuffle, seed=1)
                    for r in range(world)
                ]
                parts = [list(sampler) for sampler in samplers]
                assert sorted(i for part in parts for i in part) == list(range(count))
                assert [len(p) for p in parts] == [len(s) for s in samplers]
                assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_lap_counts_micro_batches_and_waiting(start: Any) -> None:
    session = start(accumulate=2)
    model, optimizer = prepared(session)
    session.lap()
    run(session, model, optimizer, [data(4)] * 4)
    lap = session.lap()
    assert lap.steps == 4
    assert lap.seconds > lap.data_seconds >= 0
    assert session.lap().steps == 0
