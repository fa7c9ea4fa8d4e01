"""The loss scaler by itself: where the scale may go, and which saved states it takes."""

from __future__ import annotations

import math

import pytest
import torch

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
        ({"scale": None}, "lacks scale"),
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
