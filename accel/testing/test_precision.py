"""Contract of the precision policies: what is in force, what is recorded, what is put back, and loss scaling."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import accel
from accel.bench._host_reads import HostReads
from accel.errors import ArgumentError, LossScaleError, ModelError, UnsupportedError
from accel.precision import POLICIES
from accel.testing.models import assert_close, convnet, data, mlp, sgd, values


def available(backend: Any, policy: str) -> bool:
    return bool(backend.capabilities()[f"precision.{policy}"].available)


def needs(backend: Any, policy: str) -> None:
    """Skip with the table's own reason where the backend lacks `policy`; the first test holds it to refusing it."""
    if not available(backend, policy):
        pytest.skip(f"unsupported by the capability table: {backend.capabilities()[f'precision.{policy}'].why}")


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_is_in_force_and_recorded_or_refused_with_a_reason(backend: Any, start: Any, policy: str) -> None:
    if not available(backend, policy):
        with pytest.raises(UnsupportedError, match=policy):
            start(precision=policy)
        return
    session = start(precision=policy)
    said = session.backend.precision.describe()
    assert said["policy"] == policy
    assert said["meaning"]
    assert said["switches"], "the switches must be read back from the vendor"
    assert said["autocast"] == {"fp32": None, "tf32": None, "bf16": "bfloat16", "fp16": "float16"}[policy]
    assert said["loss_scaling"] == ("dynamic" if policy == "fp16" else "none")
    with session.autocast():
        out = nn.functional.linear(torch.ones(2, 2, device=session.device), torch.ones(2, 2, device=session.device))
    assert str(out.dtype) == f"torch.{said['autocast'] or 'float32'}"


def test_switches_are_as_before_after_close(backend: Any, start: Any) -> None:
    before = backend.precision.describe()["switches"]
    for policy in POLICIES:
        if available(backend, policy):
            session = start(precision=policy, deterministic=True)
            session.close()
            assert backend.precision.describe()["switches"] == before, policy


def test_overlapping_sessions_leave_the_switches_as_they_were(backend: Any, start: Any, caplog: Any) -> None:
    before = backend.precision.describe()["switches"]
    for order in ((0, 1), (1, 0)):
        sessions = [start(precision="fp32"), start(precision="fp32", deterministic=True)]
        assert "another open one had" in caplog.text
        latest = sessions[1].backend.precision.describe()["switches"]
        sessions[order[0]].close()
        if order[0] == 0:
            assert backend.precision.describe()["switches"] == latest, "closing the first changed what the second has"
        sessions[order[1]].close()
        assert backend.precision.describe()["switches"] == before, order


def test_autocast_nests_and_ends(backend: Any, start: Any) -> None:
    needs(backend, "bf16")
    session = start(precision="bf16")
    x = torch.ones(2, 2, device=session.device)
    for _ in range(3):
        with session.autocast():
            with session.autocast():
                assert (x @ x).dtype is torch.bfloat16
            with session.autocast(enabled=False):
                assert (x @ x).dtype is torch.float32
            assert (x @ x).dtype is torch.bfloat16
        assert (x @ x).dtype is torch.float32
    with pytest.raises(RuntimeError, match="inside"), session.autocast():
        raise RuntimeError("inside")
    assert (x @ x).dtype is torch.float32


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_master_parameters_are_refused_by_name(
    backend: Any, start: Any, policy: str, dtype: torch.dtype
) -> None:  # T66
    needs(backend, policy)
    session = start(precision=policy)
    model = convnet()
    model[4].to(dtype)
    with pytest.raises(ModelError, match=r"'4\.weight'"):
        session.prepare(model)
    other = convnet()
    other[1].running_mean = other[1].running_mean.to(dtype)
    with pytest.raises(ModelError, match=r"'1\.running_mean'"):
        session.prepare(other)


@pytest.mark.parametrize("policy", POLICIES)
def test_batchnorm_stays_in_fp32_and_finite(backend: Any, start: Any, policy: str) -> None:  # T68
    needs(backend, policy)
    session = start(precision=policy)
    model = convnet()
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(144, 3))
    for built in (model, plain):
        called, optimizer = session.prepare(built, sgd(built, 1e-3))
        x = torch.randn(8, 3, 8, 8) * 3000  # activations with a variance above 65504
        for (batch,) in session.batches([(x,)]):
            with session.autocast():
                loss = called(batch).float().square().mean() * 1e-6
            session.backward(loss)
            session.step(optimizer)
        norm = next(m for m in session.unwrap(called).modules() if isinstance(m, nn.BatchNorm2d))
        for tensor in (norm.running_mean, norm.running_var, *norm.parameters()):
            assert tensor is not None
            assert tensor.dtype is torch.float32
            assert bool(torch.isfinite(tensor).all())
        called.eval()
        with torch.no_grad(), session.autocast():
            out = called(x.to(session.device)).float().cpu()
        assert bool(torch.isfinite(out).all())
        assert bool(out.abs().sum() > 0)


def train(session: Any, losses: int = 4, clip: Any = None, lr: float = 0.1) -> list[torch.Tensor]:
    model = mlp()
    called, optimizer = session.prepare(model, sgd(model, lr))
    for x, y in session.batches([data(8, seed=i) for i in range(losses)]):
        loss = nn.functional.mse_loss(called(x), y)
        session.backward(loss)
        session.step(optimizer)
    return values(session.unwrap(called))


def test_bf16_has_no_scaler_whatever_was_asked(backend: Any, start: Any, caplog: Any) -> None:  # T66
    needs(backend, "bf16")
    plain = train(start(precision="bf16"))
    asked = train(start(precision="bf16", loss_scale=1024.0))
    assert_close(plain, asked, 0)
    assert "loss_scale=1024.0 is not used" in caplog.text


def test_fp16_steps_equal_fp32_steps_where_nothing_is_cast(backend: Any, start: Any) -> None:  # T10, T11
    """Without autocast the scaled path must give the unscaled numbers: unscale once, then clip."""
    needs(backend, "fp16")
    for loss_scale in (None, 1024.0, accel.LossScale(init=2.0**20, interval=1)):
        for clip in (None, 0.05):
            scaled = train(start(precision="fp16", loss_scale=loss_scale, clip_norm=clip))
            plain = train(start(precision="fp32", clip_norm=clip))
            assert_close(scaled, plain)


def test_reported_norm_is_unscaled_and_before_clipping(backend: Any, start: Any) -> None:  # T10
    for policy in ("fp32", "fp16"):
        if not available(backend, policy):
            continue
        session = start(precision=policy, clip_norm=1.0)
        weight = nn.Linear(1, 1, bias=False)
        nn.init.constant_(weight.weight, 2.0)
        model, optimizer = session.prepare(weight, sgd(weight, 1.0))
        x = torch.full((1, 1), 3.0, device=session.device)
        session.backward(model(x).sum() * 10)
        result = session.step(optimizer)
        assert result.grad_norm.item() == pytest.approx(30.0)
        assert session.unwrap(model).weight.item() == pytest.approx(1.0)  # moved by lr * the clipped norm of 1
        assert (result.loss_scale is None) is (policy == "fp32")


def overflow(session: Any, model: Any) -> None:
    session.backward(model(torch.full((1, 1), math.inf, device=session.device)).sum())


def test_overflow_skips_step_and_scheduler_and_says_so(backend: Any, start: Any) -> None:  # T63, T15
    needs(backend, "fp16")
    session = start(precision="fp16", loss_scale=accel.LossScale(init=8.0, interval=2, floor=4.0))
    linear = nn.Linear(1, 1, bias=False)
    model, optimizer = session.prepare(linear, sgd(linear, 0.5))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    before = session.unwrap(model).weight.item()
    scales = []
    for _ in range(2):  # the second is skipped at the floor: a skip is never inferred from the scale
        overflow(session, model)
        result = session.step(optimizer, scheduler=scheduler)
        assert (result.boundary, result.stepped, result.skipped) == (True, False, True)
        scales.append(result.loss_scale.item())
    assert scales == [8.0, 4.0]
    assert session.unwrap(model).weight.item() == before
    assert optimizer.param_groups[0]["lr"] == 0.5
    session.backward(model(torch.ones(1, 1, device=session.device)).sum())
    result = session.step(optimizer, scheduler=scheduler)
    assert (result.stepped, result.skipped) == (True, False)
    assert result.loss_scale.item() == 4.0
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert session.unwrap(model).weight.item() == pytest.approx(before - 0.5)


def test_overflow_without_end_is_an_error_that_names_the_parameter(backend: Any, start: Any) -> None:  # T16
    needs(backend, "fp16")
    session = start(precision="fp16", loss_scale=accel.LossScale(max_skips=3))
    linear = nn.Linear(1, 1, bias=False)
    model, optimizer = session.prepare(linear, sgd(linear))
    for _ in range(2):
        overflow(session, model)
        assert session.step(optimizer).skipped
    overflow(session, model)
    with pytest.raises(LossScaleError, match=r"3 steps in a row.*step 3, rank 0.*'weight'"):
        session.step(optimizer)
    assert bool(torch.isfinite(session.unwrap(model).weight).all())


@pytest.mark.parametrize("policy", POLICIES)
def test_host_reads_one_flag_a_boundary_under_fp16_and_nothing_otherwise(backend: Any, start: Any, policy: str) -> None:
    needs(backend, policy)
    session = start(precision=policy, accumulate=2, clip_norm=1.0)
    model = mlp()
    called, optimizer = session.prepare(model, sgd(model, momentum=0.9))
    meter = session.meter()
    with HostReads() as reads:
        for x, y in session.batches([data(8, seed=i) for i in range(7)]):
            with session.autocast():
                loss = nn.functional.mse_loss(called(x).float(), y)
            session.backward(loss, weight=len(x))
            session.step(optimizer)
            meter.add(weight=len(x), loss=loss.detach())
    assert reads.count == (4 if policy == "fp16" else 0)  # 7 micro-batches are 4 windows of 2


@pytest.mark.parametrize("fused", [False, True])
def test_optimizers_that_unscale_themselves_do_not_unscale_twice(backend: Any, start: Any, fused: bool) -> None:  # T11
    needs(backend, "fp16")
    results = []
    for policy in ("fp32", "fp16"):
        session = start(precision=policy)
        model = mlp()
        called, optimizer = session.prepare(
            model, torch.optim.Adam(model.parameters(), lr=0.01, fused=fused, foreach=False)
        )
        for x, y in session.batches([data(8, seed=i) for i in range(3)]):
            session.backward(nn.functional.mse_loss(called(x), y))
            session.step(optimizer)
        results.append(values(session.unwrap(called)))
    assert_close(results[0], results[1], 1e-5)


@pytest.mark.parametrize(
    "bad",
    [
        {"precision": "half"},
        {"precision": None},
        {"precision": "fp16", "loss_scale": 0},
        {"precision": "fp16", "loss_scale": -1.0},
        {"precision": "fp16", "loss_scale": math.nan},
        {"precision": "fp16", "loss_scale": 1e-45},
        {"precision": "fp16", "loss_scale": 1e300},
        {"clip_norm": 0},
        {"clip_norm": -1},
        {"accumulate": 0},
        {"accumulate": 1.5},
        {"accumulate": True},
        {"seed": -1},
        {"seed": "a"},
        {"timeout": 0},
        {"timeout": -1},
        {"check": "sometimes"},
        {"deterministic": "yes"},
    ],
)
def test_bad_argument_of_init_is_named_and_changes_nothing(backend: Any, start: Any, bad: dict[str, Any]) -> None:
    before = backend.precision.describe()["switches"]
    name = list(bad)[-1]
    with pytest.raises(ArgumentError, match=name):
        start(**bad)
    assert backend.precision.describe()["switches"] == before


@pytest.mark.parametrize(
    "bad",
    [
        {"init": 0.5},
        {"init": math.inf},
        {"init": 1e-45},
        {"init": 1e300},
        {"floor": 1e-45},
        {"floor": math.inf},
        {"growth": 0.5},
        {"backoff": 1.0},
        {"backoff": 0},
        {"interval": 0},
        {"max_skips": 0},
    ],
)
def test_bad_loss_scale_is_refused(bad: dict[str, Any]) -> None:  # T16
    with pytest.raises(ArgumentError, match=f"LossScale\\({next(iter(bad))}="):
        accel.LossScale(**bad)
