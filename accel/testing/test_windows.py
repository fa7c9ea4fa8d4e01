"""Contract of windows in one process: their size, weights, clipping, several optimizers, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from accel.errors import (
    ArgumentError,
    WindowError,
)
from accel.testing.models import assert_close, data, mlp, reference, sgd, values
from accel.testing.training import adversaries, adversaries_by_hand, loss_of, prepared, run


@pytest.mark.parametrize("accumulate", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("looked_ahead", [True, False])
def test_windows_are_means_over_their_real_size(start: Any, accumulate: int, looked_ahead: bool) -> None:  # T21
    """7 micro-batches: the last window may be incomplete, and is divided by its own size."""
    batches = [data(4, seed=i) for i in range(7)]
    session = start(accumulate=accumulate)
    model, optimizer = prepared(session)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    results = []
    if looked_ahead:
        for x, y in session.batches(batches):
            session.backward(loss_of(model, x, y))
            results.append(session.step(optimizer, scheduler=scheduler))
    else:
        for i, (x, y) in enumerate(batches):
            session.backward(loss_of(model, x.to(session.device), y.to(session.device)))
            results.append(session.step(optimizer, scheduler=scheduler, final=i == len(batches) - 1))
    windows = [batches[i : i + accumulate] for i in range(0, 7, accumulate)]
    steps = math.ceil(7 / accumulate)
    assert sum(r.boundary for r in results) == sum(r.stepped for r in results) == steps
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**steps)
    expected = mlp()
    plain = sgd(expected)
    for i, window in enumerate(windows):
        plain.param_groups[0]["lr"] = 0.1 * 0.9**i
        for x, y in window:
            (loss_of(expected, x, y) / len(window)).backward()
        plain.step()
        plain.zero_grad()
    assert_close(values(session.unwrap(model)), values(expected))


def test_accumulation_equals_one_large_batch(start: Any) -> None:
    x, y = data(8)
    halves = [(x[:4], y[:4]), (x[4:], y[4:])]
    results = []
    for accumulate, batches in ((1, [(x, y)] * 5), (2, halves * 5)):
        session = start(accumulate=accumulate)
        model, optimizer = prepared(session, momentum=0.9)
        run(session, model, optimizer, batches)
        results.append(values(session.unwrap(model)))
    assert_close(results[0], results[1])
    assert_close(results[0], values(reference([[(x, y)]] * 5, momentum=0.9)))


def test_weights_make_the_mean_over_samples(start: Any) -> None:  # T20
    """Three samples x=1 in one micro-batch and one x=5 in the next, target 1, weight 0: the gradient of the mean is
    -4."""
    session = start(accumulate=2)
    linear = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(linear.weight)
    model, optimizer = session.prepare(linear, sgd(linear, 1.0))
    for x in session.batches([torch.ones(3, 1), torch.full((1, 1), 5.0)], short="keep"):
        session.backward((model(x) - 1).square().mean(), weight=len(x))
        session.step(optimizer)
    assert session.unwrap(model).weight.item() == pytest.approx(4.0)


@pytest.mark.parametrize("weight", [3, 3.0, "tensor"])
def test_weight_alone_changes_nothing(start: Any, weight: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    batches = [data(4, seed=i) for i in range(3)]
    for x, y in session.batches(batches):
        session.backward(
            loss_of(model, x, y), weight=torch.tensor(3.0, device=session.device) if weight == "tensor" else weight
        )
        session.step(optimizer)
    assert_close(values(session.unwrap(model)), values(reference([[b] for b in batches])))


def test_all_weights_zero_moves_nothing(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    before = values(session.unwrap(model))
    x, y = (t.to(session.device) for t in data(4))
    session.backward(loss_of(model, x, y), weight=0)
    assert session.step(optimizer).stepped
    assert_close(values(session.unwrap(model)), before, 0)


def test_several_losses_and_several_optimizers_share_one_window(start: Any) -> None:
    session = start(accumulate=2, clip_norm=0.05)
    model = mlp()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)
    called, first, second = session.prepare(model, first, second)
    batches = [data(4, seed=i) for i in range(4)]
    for x, y in session.batches(batches):
        out = called(x)
        session.backward(nn.functional.mse_loss(out, y) / 2)
        session.backward(nn.functional.mse_loss(called(x), y) / 2)
        result = session.step(first, second)
    assert result.grad_norm.item() > 0
    assert_close(values(session.unwrap(called)), values(reference([batches[:2], batches[2:]], clip=0.05)))


def test_zero_grad_left_in_the_loop_is_named(start: Any) -> None:
    for where in ("before backward", "before step"):
        session = start(accumulate=2)
        model, optimizer = prepared(session)
        with pytest.raises(WindowError, match="zero_grad"):  # noqa: PT012 - the second micro-batch must raise, wherever it notices
            for x, y in session.batches([data(4), data(4)]):
                if where == "before backward":
                    optimizer.zero_grad()
                session.backward(loss_of(model, x, y))
                if where == "before step":
                    optimizer.zero_grad(set_to_none=False)
                session.step(optimizer)


def test_step_whose_gradients_are_gone_is_an_error(start: Any) -> None:
    for arguments in ({}, {"clip_norm": 1.0}):
        session = start(**arguments)
        model, optimizer = prepared(session)
        session.backward(model(torch.ones(1, 6, device=session.device)).sum())
        optimizer.zero_grad()
        with pytest.raises(WindowError, match="no gradient at all"):
            session.step(optimizer)


def test_zero_grad_before_a_window_is_harmless(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    batches = [data(4, seed=i) for i in range(2)]
    for x, y in session.batches(batches):
        optimizer.zero_grad()
        session.backward(loss_of(model, x, y))
        session.step(optimizer)
    assert_close(values(session.unwrap(model)), values(reference([[b] for b in batches])))


def test_alternating_optimizers_need_a_window_of_one(start: Any) -> None:
    session = start()
    models = [mlp(0), mlp(1)]
    (a, opt_a), (b, opt_b) = (session.prepare(m, sgd(m)) for m in models)
    x, y = (t.to(session.device) for t in data(4))
    for model, optimizer in ((a, opt_a), (b, opt_b), (a, opt_a)):
        session.backward(loss_of(model, x, y))
        assert session.step(optimizer).stepped
    session.accumulate = 2
    session.backward(loss_of(a, x, y))
    session.step(opt_a)
    session.backward(loss_of(b, x, y))
    with pytest.raises(WindowError, match="accumulate=1"):
        session.step(opt_b)


def test_alternating_models_equal_plain_pytorch_without_any_zero_grad(start: Any) -> None:
    assert_close(adversaries(start()), adversaries_by_hand(1))


def test_window_size_may_change_at_the_last_batch_of_a_pass(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    batches = [data(4, seed=i) for i in range(5)]
    results = []
    for i, (x, y) in enumerate(session.batches(batches)):
        if i % 2 == 0:
            session.accumulate = 2
        session.backward(loss_of(model, x, y))
        results.append(session.step(optimizer))
    assert [r.boundary for r in results] == [False, True, False, True, True]
    assert_close(values(session.unwrap(model)), values(reference([batches[:2], batches[2:4], batches[4:]])))


def test_closed_session_does_not_train(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    loss = model(torch.ones(1, 6, device=session.device)).sum()
    session.close()
    with pytest.raises(WindowError, match="closed session"):
        session.backward(loss)
    with pytest.raises(WindowError, match="closed session"):
        session.step(optimizer)
    with pytest.raises(WindowError, match="closed session"), session.autocast():
        pass
    with pytest.raises(WindowError, match="closed session"):
        session.prepare(torch.nn.Linear(2, 2))
    with pytest.raises(WindowError, match="closed session"):
        session.batches([torch.ones(1)])


def test_steps_without_a_backward_are_told_once(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    session = start()
    _, optimizer = prepared(session)
    with caplog.at_level("WARNING", logger="accel"):
        results = [session.step(optimizer) for _ in range(3)]
    assert [(result.boundary, result.stepped) for result in results] == [(True, False)] * 3
    assert [record.getMessage() for record in caplog.records if "nothing was trained" in record.getMessage()] == [
        (
            "step(): nothing was trained, since backward was not called in window 1 (told once): call "
            "session.backward(loss) before step()"
        )
    ]


def test_expanded_buffer_becomes_a_whole_one(start: Any) -> None:
    model = mlp()
    model.register_buffer("scale", torch.ones(1).expand(4))
    buffer = start().prepare(model).get_buffer("scale")
    assert buffer.tolist() == [1.0] * 4
    assert 0 not in buffer.stride()


def test_window_size_changes_between_windows_only(start: Any) -> None:
    session = start(accumulate=2)
    model, optimizer = prepared(session)
    x, y = (t.to(session.device) for t in data(4))
    session.backward(loss_of(model, x, y))
    session.step(optimizer)
    with pytest.raises(WindowError, match="window is open"):
        session.accumulate = 1
    session.backward(loss_of(model, x, y))
    assert session.step(optimizer).boundary
    session.accumulate = 1
    assert session.accumulate == 1
    with pytest.raises(ArgumentError, match="accumulate"):
        session.accumulate = 0


def test_step_without_backward_steps_nothing(start: Any) -> None:
    for arguments in ({}, {"clip_norm": 1.0}):
        session = start(**arguments)
        model, optimizer = prepared(session)
        before = values(session.unwrap(model))
        result = session.step(optimizer)
        assert (result.boundary, result.stepped, result.skipped) == (True, False, False)
        assert_close(values(session.unwrap(model)), before, 0)


def test_open_window_is_reported_as_dropped(start: Any, caplog: Any) -> None:
    session = start(accumulate=3)
    model, optimizer = prepared(session)
    x, y = (t.to(session.device) for t in data(4))
    session.backward(loss_of(model, x, y))
    session.step(optimizer)
    session.close()
    assert "a window of 1 finished micro-batch(es) is dropped" in caplog.text
    assert session.dropped_windows == 1
    assert all(p.grad is None for p in session.unwrap(model).parameters())


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda m, x: m(x), "shape"),
        (lambda m, x: m(x).sum().detach(), "not attached"),
        (lambda m, x: 3.0, "float"),
        (lambda m, x: None, "NoneType"),
    ],
)
def test_bad_loss_is_named(start: Any, loss: Any, said: str) -> None:
    session = start()
    model, _ = prepared(session)
    with pytest.raises(ArgumentError, match=said):
        session.backward(loss(model, torch.ones(2, 6, device=session.device)))


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, "many", True, [1]])
def test_bad_weight_is_named(start: Any, weight: Any) -> None:
    session = start()
    model, _ = prepared(session)
    with pytest.raises(ArgumentError, match="weight"):
        session.backward(model(torch.ones(2, 6, device=session.device)).sum(), weight=weight)


def test_weight_sometimes_is_an_error(start: Any) -> None:
    session = start(accumulate=2)
    model, optimizer = prepared(session)
    x = torch.ones(2, 6, device=session.device)
    session.backward(model(x).sum(), weight=2)
    session.step(optimizer)
    with pytest.raises(WindowError, match="always or never"):
        session.backward(model(x).sum())


def test_step_refuses_what_was_not_prepared(start: Any) -> None:
    session = start()
    prepared(session)
    other = mlp()
    with pytest.raises(ArgumentError, match="not prepared"):
        session.step(sgd(other))
    with pytest.raises(ArgumentError, match="no optimizer"):
        session.step()


def test_scheduler_that_needs_a_metric_is_refused_before_the_step(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    before = values(session.unwrap(model))
    session.backward(model(torch.ones(2, 6, device=session.device)).sum())
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau"):
        session.step(optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    assert_close(values(session.unwrap(model)), before, 0)


def test_hooks_of_the_user_see_finished_gradients(start: Any) -> None:
    session = start(accumulate=2, clip_norm=0.01)
    model, optimizer = prepared(session)
    seen = []
    optimizer.register_step_pre_hook(
        lambda opt, args, kwargs: seen.append(
            math.sqrt(sum(float(p.grad.square().sum()) for g in opt.param_groups for p in g["params"]))
        )
    )
    run(session, model, optimizer, [data(4), data(4)])
    assert seen == [pytest.approx(0.01, rel=1e-3)]


def test_clip_inf_only_measures(start: Any) -> None:
    session = start(clip_norm=math.inf)
    model, optimizer = prepared(session)
    batches = [data(4, seed=i) for i in range(2)]
    results = run(session, model, optimizer, batches)
    assert all(float(r.grad_norm) > 0 for r in results)
    assert_close(values(session.unwrap(model)), values(reference([[b] for b in batches])))


def test_frozen_parameters_stay(start: Any) -> None:
    session = start(clip_norm=1.0)
    model = mlp()
    model[0].requires_grad_(False)
    called, optimizer = session.prepare(model, sgd(model))
    before = values(model[0])
    run(session, called, optimizer, [data(4), data(4)])
    assert_close(values(session.unwrap(called)[0]), before, 0)
