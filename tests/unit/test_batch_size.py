"""The search for the largest batch: what is retried and what is not, ranges, forecasts, and how few trials it takes."""

from __future__ import annotations

import weakref

import pytest
import torch

import accel
from accel._search import largest
from accel.errors import ArgumentError, BatchSizeError, WindowError

MIB = 2**20


@pytest.mark.parametrize("answer", [1, 2, 3, 31, 32, 33, 100, 127, 128])
@pytest.mark.parametrize("start", [1, 8, 32, 128])
def test_the_search_is_exact_from_any_start(answer: int, start: int) -> None:
    tried: list[int] = []

    def passes(value: int) -> bool:
        tried.append(value)
        return value <= answer

    found = largest(passes, start, most=128)
    assert found.good == answer
    assert found.bad == (None if answer == 128 else answer + 1)
    assert len(tried) == len(set(tried))


def test_a_search_below_its_least_finds_nothing() -> None:
    assert largest(lambda _: False, 8, least=3, most=64) == (None, 3, 1)


# T49
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm"),
    ],
)
def test_out_of_memory_is_tried_again_lower_with_the_failed_tensors_gone(error: Exception) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    sizes: list[int] = []

    def step(batch: int) -> None:
        assert all(tensor() is None for tensor in held)
        sizes.append(batch)
        if batch > 40:
            tensor = torch.ones(MIB)
            held.append(weakref.ref(tensor))
            raise error  # the same object each time: it keeps its traceback

    found = accel.find_batch_size(step, 64, repeats=1, budget=2**40)
    assert (found.batch, found.too_large) == (40, 41)
    assert sizes[:2] == [64, 32]
    assert len(held) > 1
    assert {trial.batch: trial.outcome for trial in found.trials}[64] == "out of memory"
    assert found.curve[0][0] == 32


# T49
@pytest.mark.parametrize(
    "error", [RuntimeError("shape mismatch"), MemoryError("no memory for the interpreter"), KeyboardInterrupt()]
)
def test_another_error_is_raised_and_not_tried_again(error: BaseException) -> None:
    sizes: list[int] = []

    def step(batch: int) -> None:
        sizes.append(batch)
        raise error

    with pytest.raises(type(error)):
        accel.find_batch_size(step, 64)
    assert sizes == [64]


def test_not_even_the_least_batch_fits_and_the_error_has_the_history() -> None:
    def step(batch: int) -> None:
        raise torch.OutOfMemoryError(f"no room for {batch}")

    with pytest.raises(BatchSizeError, match=r"batch of 2 fits; tried 4: .*no room for 4.*; 2: .*no room for 2"):
        accel.find_batch_size(step, 4, least=2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"start": 8, "most": 4}, "range is empty"),
        ({"start": 2, "least": 4}, "range is empty"),
        ({"start": 5, "least": 8, "most": 4}, "range is empty"),
        ({"start": 0}, "start=0"),
        ({"start": True}, "start=True"),
        ({"start": 1.5}, "start=1.5"),
        ({"start": 1, "repeats": 0}, "repeats=0"),
        ({"start": 1, "budget": -1}, "budget=-1"),
    ],
)
def test_a_range_that_cannot_be_searched_is_refused_before_anything_runs(arguments: dict[str, int], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        accel.find_batch_size(lambda batch: pytest.fail(f"ran {batch}"), **arguments)


def test_ranks_without_a_session_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match="2 ranks need session="):
        accel.find_batch_size(lambda batch: None, 1)


def test_on_a_cpu_a_batch_foretold_to_be_above_the_budget_is_not_run() -> None:
    ran: list[int] = []

    def step(batch: int) -> int:
        ran.append(batch)
        return int(torch.ones((batch + 3) * MIB, dtype=torch.uint8)[0])

    found = accel.find_batch_size(step, 1, budget=50 * MIB, repeats=1)
    assert (found.batch, found.too_large) == (47, 48)
    assert max(ran) < 50
    assert {trial.outcome for trial in found.trials} == {"fits", "forecast over the budget", "over the budget"}
    assert dict(found.curve)[32] == 35 * MIB


def test_an_open_window_is_refused() -> None:
    with accel.init(backend="cpu", accumulate=2) as session:
        model = torch.nn.Linear(2, 2)
        model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        session.backward(model(torch.ones(1, 2)).sum())
        session.step(optimizer)
        with pytest.raises(WindowError, match="open window"):
            accel.find_batch_size(lambda batch: None, 1, session=session)
