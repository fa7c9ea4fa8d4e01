"""Contract of `accel.find_batch_size`: exact, without a trace in the session, and agreed between ranks."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import accel
from accel.testing.ranks import RankPool
from accel.testing.test_memory import MIB, needs

WIDTH = 256


def made(session: Any, width: int = WIDTH) -> tuple[Any, Any]:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.Linear(width, width))
    model, optimizer = session.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    return model, optimizer


def trained(session: Any, model: Any, optimizer: Any, batch: int) -> None:
    loss = model(torch.randn(batch, WIDTH).to(session.device)).square().mean()
    session.backward(loss)
    session.step(optimizer)


def state_of(session: Any, model: Any, optimizer: Any) -> tuple[Any, Any, torch.Tensor]:
    plain = {name: value.detach().cpu().clone() for name, value in session.unwrap(model).state_dict().items()}
    momentum = [state["momentum_buffer"].cpu().clone() for state in optimizer.state.values()]
    return plain, momentum, torch.randn(3)


def test_a_search_leaves_no_trace_in_the_session(backend: Any, start: Any) -> None:
    session = start()
    model, optimizer = made(session)
    trained(session, model, optimizer, 8)
    drawn = backend.device.rng_state()
    before = state_of(session, model, optimizer)
    backend.device.set_rng_state(drawn)

    def step(batch: int) -> None:
        trained(session, model, optimizer, batch)
        if batch > 5:
            raise RuntimeError("RESOURCE_EXHAUSTED: as PJRT says it")

    found = accel.find_batch_size(step, 4, session=session, most=8)
    assert (found.batch, found.too_large) == (5, 6)
    after = state_of(session, model, optimizer)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    trained(session, model, optimizer, 4)  # the window is whole


PLACES = ("forward", "backward", "gradient", "optimizer")


def hooked(place: str, net: Any, optimizer: Any, hook: Any) -> Any:
    """Let `hook` run at `place` of a step; what removes it."""
    if place == "forward":
        return net[1].register_forward_hook(hook)
    if place == "backward":
        return net[1].register_full_backward_hook(hook)
    if place == "gradient":
        return next(iter(net.parameters())).register_post_accumulate_grad_hook(hook)
    return optimizer.register_step_pre_hook(hook)


@pytest.mark.parametrize("place", PLACES)
def test_memory_that_ends_inside_a_hook_is_tried_again_lower(backend: Any, start: Any, place: str) -> None:  # T49
    """What the failed step made is gone by the next, and the session goes on."""
    session = start()
    model, optimizer = made(session)
    size = 0
    held: list[weakref.ref[torch.Tensor]] = []

    def runs_out(*_: Any) -> None:
        if size > 5:
            tensor = torch.ones(1024, device=session.device)
            held.append(weakref.ref(tensor))
            raise torch.OutOfMemoryError("Tried to allocate 20.00 MiB")

    handle = hooked(place, session.unwrap(model), optimizer, runs_out)

    def step(batch: int) -> None:
        nonlocal size
        assert all(tensor() is None for tensor in held)
        size = batch
        trained(session, model, optimizer, batch)

    found = accel.find_batch_size(step, 4, session=session, most=8)
    assert (found.batch, found.too_large) == (5, 6)
    assert len(held) == 2  # at 8 and at 6: no batch is tried again after it failed
    handle.remove()
    trained(session, model, optimizer, 8)


@pytest.mark.parametrize("place", PLACES)
def test_another_error_inside_a_hook_is_raised_and_not_tried_again(backend: Any, start: Any, place: str) -> None:
    session = start()
    model, optimizer = made(session)
    before = state_of(session, model, optimizer)[0]
    raised = []

    def fails(*_: Any) -> None:
        raised.append(place)
        raise MemoryError("the interpreter's own") if place == "forward" else ZeroDivisionError(place)

    handle = hooked(place, session.unwrap(model), optimizer, fails)
    with pytest.raises(MemoryError if place == "forward" else ZeroDivisionError):
        accel.find_batch_size(lambda batch: trained(session, model, optimizer, batch), 4, session=session, most=8)
    assert len(raised) == 1
    handle.remove()
    torch.testing.assert_close(state_of(session, model, optimizer)[0], before, rtol=0, atol=0)
    trained(session, model, optimizer, 8)


def test_the_largest_batch_is_exact_under_a_budget(backend: Any, start: Any) -> None:
    needs(backend, "memory.track")
    session = start()
    model, optimizer = made(session)
    found = accel.find_batch_size(
        lambda batch: trained(session, model, optimizer, batch), 4096, session=session, budget=64 * MIB
    )
    assert found.too_large == found.batch + 1
    best = next(trial for trial in found.trials if trial.batch == found.batch)
    taken = best.peak_reserved if backend.capabilities().offers("memory.oom") else best.peak
    assert taken is not None
    assert 32 * MIB < taken <= 64 * MIB


def test_the_largest_batch_fits_again_and_again_and_leaves_the_cache_empty(backend: Any, start: Any) -> None:
    needs(backend, "memory.limit")
    found, left = searched_under_a_limit(start())
    assert left == (0, 0)
    peaks = [peak for _, peak in found.curve if peak is not None]
    assert peaks == sorted(peaks)


def searched_under_a_limit(session: Any) -> tuple[accel.BatchSize, tuple[int, int]]:
    """Search in 24 MiB and train ten steps at what was found; bytes that the search left reserved and allocated."""
    memory = session.backend.memory
    model, optimizer = made(session)
    for _ in range(2 if session.world_size > 1 else 0):  # DDP makes its buckets anew after the first step
        trained(session, model, optimizer, 8)
    gc.collect()
    memory.empty_cache()
    stats = memory.stats()
    memory.limit((stats.reserved + 24 * MIB) / stats.total)
    try:
        found = accel.find_batch_size(
            lambda batch: trained(session, model, optimizer, batch), 1024, session=session, most=2**13
        )
        after = memory.stats()
        outcomes = {trial.batch: trial.outcome for trial in found.trials}
        assert found.too_large == found.batch + 1
        assert (outcomes[found.batch], outcomes[found.too_large]) == ("fits", "out of memory")
        for _ in range(10):
            trained(session, model, optimizer, found.batch)
        session.backend.device.synchronize()
        return found, (after.reserved - stats.reserved, after.allocated - stats.allocated)
    finally:
        memory.limit(1.0)


def searched_on_rank() -> tuple[int, list[str]]:
    with accel.init(timeout=60) as session:
        found, (reserved, _) = searched_under_a_limit(session)
        assert reserved <= 4 * MIB  # of the fabric
        return found.batch, [trial.outcome for trial in found.trials]


def test_the_largest_batch_fits_again_and_again_between_ranks(backend: Any, ranks: RankPool) -> None:  # T49
    needs(backend, "memory.limit")
    mine, theirs = ranks.run(searched_on_rank, timeout=240)
    assert mine == theirs
    assert "out of memory" in mine[1]


def searched(short: int, wrong: int, inside: bool = False) -> tuple[int, list[Any], list[float]]:
    """On a rank: rank 1 runs out of memory above `short`, before forward or inside backward, or fails above `wrong` for
    another reason.
    """
    with accel.init(timeout=60) as session:
        model, optimizer = made(session)
        first = [float(p.detach().cpu().sum()) for p in model.parameters()]

        size = 0

        def runs_out(*_: Any) -> None:
            if session.rank == 1 and size > short:
                raise RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB")

        if inside:
            hooked("gradient", session.unwrap(model), optimizer, runs_out)

        def step(batch: int) -> None:
            nonlocal size
            size = batch
            if not inside:
                runs_out()
            if session.rank == 1 and batch > wrong:
                raise ZeroDivisionError(f"batch {batch}")
            trained(session, model, optimizer, batch)

        found = accel.find_batch_size(step, 16, session=session, most=32)
        assert first == [float(p.detach().cpu().sum()) for p in model.parameters()]
        for _ in range(3):
            trained(session, model, optimizer, found.batch)
        return (
            found.batch,
            [(trial.batch, trial.outcome, trial.note) for trial in found.trials],
            [float(p.detach().cpu().double().sum()) for p in model.parameters()],
        )


@pytest.mark.parametrize("inside", [False, True])
def test_ranks_agree_on_the_batch_when_one_runs_out_of_memory(ranks: RankPool, inside: bool) -> None:  # T49
    (mine, tried, sums), (theirs, also, their_sums) = ranks.run(searched, 21, 1000, inside, timeout=120)
    assert mine == theirs == 21
    assert tried == also
    assert any(note.startswith("rank 1: NPU out of memory") for _, _, note in tried)
    assert sums == their_sums


def test_an_error_of_one_rank_ends_the_search_on_all(ranks: RankPool) -> None:
    ended = ranks.outcomes(searched, 1000, 9, timeout=120)
    assert [outcome.kind for outcome in ended] == ["error", "error"]
    assert ended[1].value == "ZeroDivisionError"
    assert ended[0].value == "CollectiveError"
    assert "failed on rank 1: ZeroDivisionError: batch 16" in ended[0].text


def searched_with_a_reduction_left_open(short: int) -> tuple[int, list[str]]:
    """On a rank: memory runs out above `short`, on all ranks and only in a backward that reduces gradients."""
    with accel.init(timeout=60) as session:
        model, optimizer = made(session)
        size = 0

        def runs_out(parameter: torch.Tensor) -> None:
            if size > short and getattr(model, "require_backward_grad_sync", True):
                raise RuntimeError("NPU out of memory. Tried to allocate 20.00 MiB")

        first = next(iter(session.unwrap(model).parameters()))
        hook = first.register_post_accumulate_grad_hook(runs_out)

        def step(batch: int) -> None:
            nonlocal size
            size = batch
            trained(session, model, optimizer, batch)

        found = accel.find_batch_size(step, 16, session=session, most=32)
        hook.remove()
        for _ in range(3):
            trained(session, model, optimizer, found.batch)
        return found.batch, [trial.outcome for trial in found.trials]


def test_memory_that_ends_while_gradients_are_reduced_ends_no_search(ranks: RankPool) -> None:  # T49
    """DDP would refuse every later forward: its reduction is open."""
    mine, theirs = ranks.run(searched_with_a_reduction_left_open, 21, timeout=120)
    assert mine == theirs
    assert mine[0] == 21
    assert mine[1].count("out of memory") > 1


def differing() -> str:
    with accel.init(timeout=60) as session:
        with pytest.raises(accel.errors.ArgumentError) as caught:
            accel.find_batch_size(lambda batch: None, 4 + session.rank, session=session)
        return str(caught.value)


def test_ranks_that_ask_for_different_ranges_are_told(ranks: RankPool) -> None:
    said = ranks.run(differing, timeout=60)
    assert all("differ between ranks" in text for text in said)
