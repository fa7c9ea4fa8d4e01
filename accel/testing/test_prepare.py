"""Contract of `Session.prepare` and of closing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accel.errors import (
    ArgumentError,
    ModelError,
)
from accel.testing.models import assert_close, data, mlp, sgd, values
from accel.testing.training import loss_of, run


def test_optimizer_built_before_prepare_trains_the_placed_model_with_its_state(start: Any) -> None:  # T54
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = data(4)
    loss_of(model, x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    expected = mlp()
    plain = torch.optim.Adam(expected.parameters(), lr=0.01)
    for _ in range(3):
        loss_of(expected, x, y).backward()
        plain.step()
        plain.zero_grad()
    session = start()
    called, optimizer = session.prepare(model, optimizer)
    held = {id(p) for g in optimizer.param_groups for p in g["params"]}
    assert held == {id(p) for p in session.unwrap(called).parameters()}
    run(session, called, optimizer, [(x, y)] * 2)
    assert_close(values(session.unwrap(called)), values(expected))


def test_gradient_hooks_from_before_prepare_hold_and_their_handles_too(start: Any) -> None:
    session = start()
    model = mlp()
    seen: list[str] = []
    named = dict(model.named_parameters())
    named["0.weight"].register_hook(lambda gradient: gradient * 0)
    handle = named["2.weight"].register_hook(lambda gradient: seen.append("before"))
    named["2.bias"].register_post_accumulate_grad_hook(lambda parameter: seen.append("after"))
    called, optimizer = session.prepare(model, sgd(model))
    before = values(session.unwrap(called))
    for x, y in session.batches([data(4, seed=i) for i in range(2)]):
        session.backward(nn.functional.mse_loss(called(x), y))
        session.step(optimizer)
        handle.remove()
    after = values(session.unwrap(called))
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[2], after[2])
    assert sorted(seen) == ["after", "after", "before"]


def test_ties_are_kept(start: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    session = start()
    called = session.unwrap(session.prepare(model))
    assert called[0].weight is called[1].weight
    assert called[0].weight.device.type == session.device.type


def test_model_alone_comes_back_alone(start: Any) -> None:
    session = start()
    called = session.prepare(mlp())
    assert isinstance(called, nn.Module)
    assert isinstance(session.unwrap(called), nn.Sequential)


@pytest.mark.parametrize(
    "case", ["not a module", "not an optimizer", "foreign optimizer", "closure", "meta", "twice", "buffers"]
)
def test_what_cannot_be_prepared_is_named(start: Any, case: str) -> None:  # T45, T54
    session = start()
    model = mlp()
    with pytest.raises((ArgumentError, ModelError)) as caught:  # noqa: PT012
        if case == "not a module":
            session.prepare([1])
        elif case == "not an optimizer":
            session.prepare(model, model)
        elif case == "foreign optimizer":
            session.prepare(model, sgd(mlp()))
        elif case == "closure":
            session.prepare(model, torch.optim.LBFGS(model.parameters()))
        elif case == "meta":
            session.prepare(nn.Linear(2, 2, device="meta"))
        elif case == "buffers":
            session.prepare(model, buffers="some")
        else:
            session.prepare(session.prepare(model))
    assert "prepare(" in str(caught.value)


def test_parameters_on_several_devices_are_named(start: Any) -> None:  # T45
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ModelError, match=r"'1\.weight'.*meta"):
        start().prepare(model)


def test_closed_session_closes_again(start: Any) -> None:
    session = start()
    session.close()
    session.close()
