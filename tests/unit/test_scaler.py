"""The loss scaler by itself: where the scale may go, and which saved states it takes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import accel
from accel.errors import CheckpointError, LossScaleError
from accel.precision import LossScale
from accel.scaler import Scaler

CPU = torch.device("cpu")


def test_scale_never_falls_below_its_floor_and_skips_end_in_an_error():  # T16 (1)
    scaler = Scaler(LossScale(init=8.0, floor=2.0, max_skips=4), CPU)
    bad = torch.full((2,), math.nan)
    named = [("first", torch.ones(2)), ("second", bad)]
    scales = []
    for _ in range(4):
        scaler.check_skips(named, step=7, rank=3)
        assert float(scaler.unscale([torch.ones(2), bad], None)) == 1.0
        scaler.update(overflow=True)
        scales.append(scaler.scale)
    with pytest.raises(LossScaleError, match=r"4 steps in a row.*step 7, rank 3.*'second'"):
        scaler.check_skips(named, step=7, rank=3)
    assert scales == [4.0, 2.0, 2.0, 2.0]


def test_scale_never_becomes_infinite():  # T16 (3)
    scaler = Scaler(LossScale(init=2.0**120, interval=1), CPU)
    for _ in range(50):
        scaler.update(overflow=False)
    assert scaler.scale == 2.0**127
    assert math.isfinite(float(scaler.tensor))


@pytest.mark.parametrize("scale", [2.0**-126, 2.0**127])
def test_at_its_limits_a_scale_still_takes_finite_gradients_to_finite_ones(scale):  # T16 (2)
    scaler = Scaler(LossScale(init=scale, floor=2.0**-126), CPU)
    grad = torch.ones(2) * scaler.tensor
    assert float(scaler.unscale([grad], None)) == 0.0
    assert grad.tolist() == [1.0, 1.0]


def test_growth_waits_for_the_interval_and_starts_anew_after_an_overflow():
    scaler = Scaler(LossScale(init=4.0, interval=3), CPU)
    seen = []
    for overflow in (False, False, True, False, False, False, False):
        scaler.update(overflow)
        seen.append(scaler.scale)
    assert seen == [4.0, 4.0, 2.0, 2.0, 2.0, 4.0, 4.0]


def test_static_scale_stays():
    scaler = Scaler(128.0, CPU)
    for overflow in (True, False, False):
        scaler.update(overflow)
    assert scaler.scale == 128.0
    assert not scaler.dynamic


def test_unscale_divides_once_over_all_dtypes_and_reports_an_overflow_in_any():
    scaler = Scaler(LossScale(init=4.0), CPU)
    grads = [torch.full((2,), 8.0), torch.full((3,), 8.0, dtype=torch.float64)]
    assert float(scaler.unscale(grads, 0.5)) == 0.0
    assert [g.tolist() for g in grads] == [[1.0] * 2, [1.0] * 3]
    for at in (0, 1):
        grads[at][0] = math.inf
        assert float(scaler.unscale(grads, None)) == 1.0
        grads[at][0] = 1.0


def test_state_comes_back_with_the_growth_counter():  # T17 (1)
    scaler = Scaler(LossScale(init=4.0, interval=5), CPU)
    for overflow in (False, False, True, False):
        scaler.update(overflow)
    other = Scaler(LossScale(interval=5), CPU)
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert float(other.tensor) == scaler.scale == 2.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema 2"),
        ({"scale": 0.0}, r"0\.0"),
        ({"scale": math.nan}, "nan"),
        ({"scale": 1e300}, "1e[+]300"),
        ({"scale": None}, "lacks scale"),
        ({"scale": "big"}, "'big' is not a number"),
        ({"good_steps": -1}, "good_steps=-1"),
        ({"skips": 1.5}, r"skips=1\.5"),
        ({"good_steps": None}, "lacks good_steps"),
    ],
)
def test_unusable_state_is_refused_and_changes_nothing(change, said):  # T16 (2), T17
    scaler = Scaler(LossScale(), CPU)
    before = scaler.state_dict()
    state = {k: v for k, v in {**before, **change}.items() if v is not None}
    with pytest.raises(CheckpointError, match=said):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == before


def test_state_of_the_other_kind_is_not_used(caplog):
    dynamic, static = Scaler(LossScale(), CPU), Scaler(8.0, CPU)
    static.load_state_dict(dynamic.state_dict())
    assert static.scale == 8.0
    assert "the saved loss scaling is dynamic" in caplog.text


def trained(scaler, steps=3):
    """torch's own scaler after `steps` good steps."""
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for _ in range(steps):
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler


def test_states_of_torchs_scalers_are_taken_over():  # T17
    theirs = trained(torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=100)).state_dict()
    scaler = Scaler(LossScale(), CPU)
    scaler.load_state_dict(theirs)
    assert scaler.state_dict() == {"schema": 1, "scale": 512.0, "good_steps": 3, "skips": 0, "dynamic": True}
    assert float(scaler.tensor) == 512.0
    static = Scaler(64.0, CPU)
    static.load_state_dict({**theirs, "scale": 128.0, "dynamic": False})  # torch_npu's own has this word
    assert static.scale == 128.0
    with pytest.raises(CheckpointError, match="lacks scale"):
        scaler.load_state_dict({"_growth_tracker": 1})
    with pytest.raises(CheckpointError, match="expected a dict"):
        scaler.load_state_dict([1])
    assert scaler.scale == 512.0


def test_state_of_a_disabled_scaler_says_so(caplog):  # T15, T17
    scaler = Scaler(LossScale(), CPU)
    scaler.load_state_dict(torch.amp.GradScaler("cpu", enabled=False).state_dict())
    assert scaler.scale == LossScale().init
    assert "was disabled" in caplog.text


def test_a_session_goes_on_with_torchs_scale(caplog):
    theirs = trained(torch.amp.GradScaler("cpu", init_scale=256.0)).state_dict()
    with accel.init(backend="cpu", precision="fp16") as session:
        session.load_scaler(theirs)
        model = nn.Linear(1, 1)
        model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        session.backward(model(torch.ones(1, 1)).sum())
        assert session.step(optimizer).loss_scale.item() == 256.0
    with accel.init(backend="cpu", precision="bf16") as session:
        session.load_scaler(theirs)
    assert "not used" in caplog.text
