"""Contract of loss scaling: whatever the training looks like, the scaled path gives the numbers of the plain one.

Nothing is cast here (no autocast), so that fp16's scaling is all that differs from fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import accel
from accel.errors import WindowError
from accel.testing.models import assert_close, convnet, data, mlp, sgd, values
from accel.testing.test_precision import needs

Loop = Callable[[Any], list[torch.Tensor]]


def _plain(session: Any, **options: Any) -> list[torch.Tensor]:
    model = mlp()
    called, optimizer = session.prepare(model, sgd(model, momentum=0.9, **options))
    for x, y in session.batches([data(4, seed=i) for i in range(6)]):
        session.backward(nn.functional.mse_loss(called(x), y))
        session.step(optimizer)
    return values(session.unwrap(called))


def _foreach(session: Any) -> list[torch.Tensor]:
    return _plain(session, foreach=True)


def _single(session: Any) -> list[torch.Tensor]:
    return _plain(session, foreach=False)


def _two_optimizers(session: Any) -> list[torch.Tensor]:
    model = mlp()
    first, second = sgd(model[0]), torch.optim.Adam(model[2].parameters(), lr=0.01)
    called, first, second = session.prepare(model, first, second)
    for x, y in session.batches([data(4, seed=i) for i in range(6)]):
        session.backward(nn.functional.mse_loss(called(x), y))
        session.step(first, second)
    return values(session.unwrap(called))


def _two_losses(session: Any) -> list[torch.Tensor]:
    model = mlp()
    called, optimizer = session.prepare(model, sgd(model))
    for x, y in session.batches([data(4, seed=i) for i in range(6)]):
        session.backward(nn.functional.mse_loss(called(x), y))
        session.backward(called(x).square().mean() * 0.1)
        session.step(optimizer)
    return values(session.unwrap(called))


def _frozen(session: Any) -> list[torch.Tensor]:
    model = mlp()
    model[0].requires_grad_(False)
    called, optimizer = session.prepare(model, sgd(model))
    for x, y in session.batches([data(4, seed=i) for i in range(6)]):
        session.backward(nn.functional.mse_loss(called(x), y))
        session.step(optimizer)
    return values(session.unwrap(called))


def _recomputed(session: Any) -> list[torch.Tensor]:
    model = mlp()
    called, optimizer = session.prepare(model, sgd(model))
    for x, y in session.batches([data(4, seed=i) for i in range(6)]):
        out = accel.checkpoint(called, x.requires_grad_())
        session.backward(nn.functional.mse_loss(out, y))
        session.step(optimizer)
    return values(session.unwrap(called))


LOOPS: tuple[Loop, ...] = (_foreach, _single, _two_optimizers, _two_losses, _frozen, _recomputed)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__.strip("_"))
def test_scaled_training_equals_plain_training(
    backend: Any, start: Any, loop: Loop, accumulate: int
) -> None:  # T10, T11
    needs(backend, "fp16")
    scaled = loop(start(precision="fp16", accumulate=accumulate, clip_norm=0.5))
    assert_close(scaled, loop(start(precision="fp32", accumulate=accumulate, clip_norm=0.5)), 1e-5)


def test_a_step_of_an_optimizer_whose_parameters_have_no_gradient_is_an_error(backend: Any, start: Any) -> None:
    needs(backend, "fp16")
    session = start(precision="fp16")
    model = mlp()
    called, first, _ = session.prepare(model, sgd(model[0]), sgd(model[2]))
    y = data(4)[1]
    hidden = called[2](torch.ones(4, 16, device=session.device))
    session.backward(nn.functional.mse_loss(hidden, y.to(session.device)))
    with pytest.raises(WindowError, match="no gradient"):
        session.step(first)


def test_a_window_without_a_backward_is_no_step_and_no_skip(backend: Any, start: Any) -> None:
    needs(backend, "fp16")
    session = start(precision="fp16")
    model = mlp()
    _, optimizer = session.prepare(model, sgd(model))
    result = session.step(optimizer)
    assert (result.boundary, result.stepped, result.skipped) == (True, False, False)


def test_determinism_is_in_force_and_what_it_leaves_out_is_named(backend: Any, start: Any) -> None:
    session = start(deterministic=True)
    said = session.backend.precision.describe()
    assert said["switches"]["deterministic_algorithms"] == "True"
    assert said["determinism"], "what cannot be honoured must be named, or that nothing is left out"
    session.close()
    assert start().backend.precision.describe()["determinism"] is None


def test_deterministic_training_repeats_bit_by_bit(start: Any) -> None:
    first, second = (_convolutions(start(deterministic=True, seed=3)) for _ in range(2))
    assert_close(first, second, 0)


def _convolutions(session: Any) -> list[torch.Tensor]:
    """With the device's own dropout."""
    model = nn.Sequential(convnet(), nn.Dropout(0.3))
    called, optimizer = session.prepare(model, sgd(model, momentum=0.9))
    generator = torch.Generator().manual_seed(0)
    for x in session.batches([torch.randn(4, 3, 8, 8, generator=generator) for _ in range(3)]):
        session.backward(called(x).square().mean())
        session.step(optimizer)
    found = values(session.unwrap(called))
    session.close()
    return found


def test_a_switch_that_is_changed_behind_the_session_is_reported(backend: Any, start: Any) -> None:
    session = start()
    assert session.backend.precision.describe()["changed"] is None
    torch.use_deterministic_algorithms(True)
    try:
        changed = session.backend.precision.describe()["changed"]
    finally:
        torch.use_deterministic_algorithms(False)
    assert "deterministic_algorithms" in changed
    assert "False, now True" in changed
