"""Contract of a last batch that is smaller than the others: kept or dropped in training, always kept in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accel.errors import ArgumentError

SAMPLES = torch.arange(11.0).reshape(11, 1)
LOADERS: dict[str, Callable[[], Any]] = {
    "DataLoader": lambda: DataLoader(TensorDataset(SAMPLES), 4),
    "list": lambda: [[SAMPLES[i : i + 4]] for i in (0, 4, 8)],
    "stream": lambda: ([SAMPLES[i : i + 4]] for i in (0, 4, 8)),
    "dicts": lambda: [{"n": i, "x": SAMPLES[i : i + 4]} for i in (0, 4, 8)],
}


def sizes(batches: Any) -> list[int]:
    return [len(batch["x"] if isinstance(batch, dict) else batch[0]) for batch in batches]


@pytest.mark.parametrize("name", LOADERS)
def test_training_keeps_or_drops_a_short_last_batch_as_told(start: Any, name: str) -> None:  # T59
    session, make = start(), LOADERS[name]
    assert sizes(session.batches(make(), short="keep")) == [4, 4, 3]
    assert session.dropped_batches == 0
    assert sizes(session.batches(make(), short="drop")) == [4, 4]
    assert session.dropped_batches == 1
    assert sizes(session.batches(make(), train=False)) == [4, 4, 3]
    assert session.dropped_batches == 1


@pytest.mark.parametrize("name", LOADERS)
def test_default_is_what_the_device_bears(backend: Any, start: Any, name: str, caplog: Any) -> None:
    """Each shape of a batch is compiled on a lazy device; an eager one takes any."""
    session = start()
    lazy = backend.kind == "lazy"
    for _ in range(2):
        assert sizes(session.batches(LOADERS[name]())) == ([4, 4] if lazy else [4, 4, 3])
    assert session.dropped_batches == (2 if lazy else 0)
    said = [record.getMessage() for record in caplog.records if "is dropped in each pass" in record.getMessage()]
    assert len(said) == int(lazy)
    assert all("of 3 samples where others have 4" in text and "short='keep'" in text for text in said)


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize(("skip", "steps", "expected"), [(0, 2, [4, 4]), (0, 3, [4, 4]), (1, None, [4]), (2, None, [])])
def test_skip_and_steps_go_with_it(start: Any, name: str, skip: int, steps: int | None, expected: list[int]) -> None:
    assert sizes(start().batches(LOADERS[name](), short="drop", skip=skip, steps=steps)) == expected


def test_the_only_batch_and_full_batches_stay(start: Any) -> None:
    session = start()
    assert sizes(session.batches(DataLoader(TensorDataset(SAMPLES[:3]), 4), short="drop")) == [3]
    assert sizes(session.batches(DataLoader(TensorDataset(SAMPLES[:8]), 4), short="drop")) == [4, 4]
    assert sizes(session.batches([], short="drop")) == []
    assert session.dropped_batches == 0


def test_windows_end_with_the_last_batch_that_is_used(start: Any) -> None:
    session = start(accumulate=2)
    layer = torch.nn.Linear(1, 1)
    model, optimizer = session.prepare(layer, torch.optim.SGD(layer.parameters(), 0.0))
    loader = DataLoader(TensorDataset(torch.ones(15, 1)), 4)
    ends = []
    for (x,) in session.batches(loader, short="drop"):
        session.backward(model(x).mean())
        ends.append(session.step(optimizer).boundary)
    assert ends == [False, True, True]
    assert session.dropped_windows == 0


def test_bad_value_is_named(start: Any) -> None:
    session = start()
    with pytest.raises(ArgumentError, match=r"batches\(short='pad'\): expected 'keep', 'drop', or None"):
        session.batches([], short="pad")
    with pytest.raises(ArgumentError, match="an evaluation sees every sample"):
        next(iter(session.batches([], train=False, short="drop")))
