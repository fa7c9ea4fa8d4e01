"""Dropout masks drawn on the host: replayed, resumed, refused where a module draws by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torchs

import accel
from accel.errors import CheckpointError, ModelError


def prepared(session, model):
    return session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), host_dropout=True)


def block():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))


@pytest.mark.parametrize("again", [False, True])
def test_a_checkpointed_forward_has_the_same_masks_and_gradients(again):  # T08
    with accel.init(backend="cpu", seed=1) as session:
        model, _ = prepared(session, block())
        x = torch.ones(4, 8, requires_grad=True)
        for _ in range(2):
            out = accel.checkpoint(model, x) if again else model(x)
            model.zero_grad()
            session.backward(out.sum())
        grads = [p.grad.clone() for p in model.parameters()]
        draws = session._masks.state()
    assert draws == [2, 2]
    kept.setdefault("grads", grads)
    torch.testing.assert_close(grads, kept["grads"], rtol=0, atol=0)


kept: dict[str, list[torch.Tensor]] = {}


def test_torchs_own_checkpoint_is_refused_in_backward():
    with accel.init(backend="cpu", seed=1) as session:
        model, _ = prepared(session, block())
        out = torchs(model, torch.ones(4, 8, requires_grad=True), use_reentrant=False)
        with pytest.raises(ModelError, match=r"accel\.checkpoint"):
            session.backward(out.sum())


def test_masks_go_on_after_a_checkpoint(tmp_path):
    def run(session, model, steps):
        return [model(torch.ones(2, 8)).detach().clone() for _ in range(steps)]

    with accel.init(backend="cpu", seed=1) as session:
        model, _ = prepared(session, block())
        run(session, model, 3)
        session.save(tmp_path / "c", model=model)
        expected = run(session, model, 2)
    with accel.init(backend="cpu", seed=1) as session:
        model, _ = prepared(session, block())
        session.load(tmp_path / "c", model=model)
        torch.testing.assert_close(run(session, model, 2), expected, rtol=0, atol=0)
    with accel.init(backend="cpu", seed=1) as session:
        model, _ = prepared(session, nn.Sequential(block(), nn.Dropout(0.1)))
        with pytest.raises(CheckpointError, match=r"masks of 2 dropout\(s\), this session prepared 3"):
            session._masks.load([3, 3])


def test_the_arithmetic_is_that_of_nn_dropout():
    x = torch.randn(400, 6, 4, 4)
    for kind in (nn.Dropout, nn.Dropout2d):
        with accel.init(backend="cpu", seed=1) as session:
            model = session.prepare(nn.Sequential(nn.Identity(), kind(0.25)), host_dropout=True)
            out = model(x)
            zero = out == 0
            torch.testing.assert_close(out[~zero], (x / 0.75)[~zero])
            assert float(zero.float().mean()) == pytest.approx(0.25, abs=0.03)
            whole = zero.flatten(2).all(2) | ~zero.flatten(2).any(2)
            assert bool(whole.all()) is (kind is nn.Dropout2d)
            model.eval()
            assert torch.equal(model(x), x)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 1, dropout=0.1)), "'1'"),
        (nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.1)), "'1'"),
        (nn.Sequential(nn.LSTM(4, 4, num_layers=2, dropout=0.1)), "'0'"),
    ],
    ids=["attention", "alpha", "rnn"],
)
def test_modules_that_draw_by_themselves_are_refused_by_name(model, name):
    with accel.init(backend="cpu") as session, pytest.raises(ModelError, match=f"module {name}"):
        session.prepare(model, host_dropout=True)


def test_a_session_without_a_seed_leaves_the_hosts_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with accel.init(backend="cpu", seed=None):
        assert torch.equal(torch.rand(1), expected)
