"""The plan: known sizes, exact search, ties, submodules by name, the allocator's replay, and bad input."""

from __future__ import annotations

import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from accel import models, plan, records
from accel.bench import plan as bench
from accel.bench._options import Options
from accel.cli import app
from accel.eager_memory import TORCH
from accel.errors import ArgumentError, ModelError
from accel.footprint import Course, Recorder
from accel.plan import _trace as trace
from accel.plan._caching import MIB, Peaks, replay
from accel.tracking import Tracker

FLOAT = 4


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


def square(model: nn.Module, batch: int) -> torch.Tensor:
    return model(torch.empty(batch, 64)).square().mean()  # type: ignore[no-any-return]


def planned(model: Any, **changes: Any) -> plan.Plan:
    return plan.plan(model, square, **{"batch": 8, "optimizer": adamw, **changes})


def test_sizes_of_a_linear_layer_are_those_on_paper() -> None:
    found = planned(nn.Linear(64, 32))
    numbers = 64 * 32 + 32
    assert found.parameters == found.gradients == FLOAT * numbers
    assert found.optimizer == 2 * FLOAT * numbers + 2 * FLOAT  # two moments, and a step counter for each parameter
    assert found.activations >= FLOAT * (8 * 64 + 8 * 32)
    assert found.peak == sum(found.at_peak.values())
    assert (found.chip, found.capacity, found.fits, found.largest_batch) == (None, None, None, None)


def test_planning_touches_neither_the_model_nor_memory() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with Tracker("cpu") as tracker:
        planned(model, batch=2**24)  # 4 GiB of inputs alone
    assert tracker.peak < MIB
    torch.testing.assert_close(model.state_dict(), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "forward" not in vars(model)


def test_tied_parameters_count_once() -> None:
    first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    apart = planned(nn.Sequential(first, second)).parameters
    second.weight = first.weight
    assert planned(nn.Sequential(first, second)).parameters == apart // 2


@pytest.mark.parametrize("allocator", ["exact", "cuda", "npu"])
def test_the_largest_batch_is_exact(allocator: str) -> None:
    memory = 24 * MIB
    found = planned(
        nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), memory=memory, headroom=0, allocator=allocator
    )
    best = found.largest_batch
    assert best is not None
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    at = {
        batch: planned(model, batch=batch, memory=memory, headroom=0, allocator=allocator) for batch in (best, best + 1)
    }
    assert at[best].fits
    assert not at[best + 1].fits


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_largest_batch_takes_three_traces(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []

    def counted(model: Any, loss: Any, batch: int, **rest: Any) -> Course:
        batches.append(batch)
        return traced(model, loss, batch, **rest)

    traced = trace.trace
    monkeypatch.setattr(plan._plan, "trace", counted)
    blocks = nn.Sequential(*(nn.Linear(64, 64) for _ in range(16)))  # autocast drops their casts in any order
    found = planned(blocks, memory=64 * MIB, precision=precision, checkpoint=("3", "5"))
    assert batches == [8, 16, found.largest_batch]


def test_a_loss_whose_memory_grows_with_the_square_of_the_batch_is_searched_by_tracing() -> None:
    def contrast(model: nn.Module, batch: int) -> torch.Tensor:
        features = model(torch.empty(batch, 64))
        return cross_entropy(features @ features.T, torch.arange(batch))

    found = plan.plan(nn.Linear(64, 64), contrast, batch=8, optimizer=adamw, memory=8 * MIB, headroom=0)
    best = found.largest_batch
    assert best is not None
    fits = [
        plan.plan(nn.Linear(64, 64), contrast, batch=batch, optimizer=adamw).peak <= 8 * MIB
        for batch in (best, best + 1)
    ]
    assert fits == [True, False]


def test_not_even_one_fits() -> None:
    found = planned(nn.Linear(64, 64), memory=1000)
    assert found.fits is False
    assert found.largest_batch is None


def test_checkpointing_by_name_keeps_less_and_accumulation_saves() -> None:
    model = nn.Sequential(
        *(nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))) for _ in range(6))
    )
    plain = planned(model, batch=4096)
    less = planned(model, batch=4096, checkpoint=[str(index) for index in range(6)])
    assert less.peak < 0.6 * plain.peak
    assert less.parameters == plain.parameters
    halves = planned(model, batch=2048, accumulate=2)
    assert halves.whole_batch_peak == plain.peak
    assert halves.saved_by_accumulation == plain.peak - halves.peak > 0.3 * plain.peak


def test_between_devices_gradients_lie_in_buckets_that_outlive_the_step() -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))  # 4 MiB each, 32 MiB in all

    def loss(model: nn.Module, batch: int) -> torch.Tensor:
        return model(torch.empty(batch, 1024)).square().mean()  # type: ignore[no-any-return]

    alone, four, eight = (plan.plan(model, loss, batch=8, optimizer=adamw, devices=devices) for devices in (1, 4, 8))
    assert four.gradients == alone.gradients == 32 * MIB
    assert four.peak == eight.peak > alone.peak
    assert (four.course.curves()["gradients"] == 32 * MIB).all()
    assert alone.course.curves()["gradients"][0] == 0
    windows = [
        plan.plan(model, loss, batch=8, optimizer=adamw, devices=devices, accumulate=2).gradients for devices in (1, 2)
    ]
    assert windows == [32 * MIB, 64 * MIB]  # what is not yet reduced lies beside the buckets


def test_the_allocator_of_a_plan_is_that_of_the_chips_backend_or_the_one_that_is_given() -> None:
    def of(**changes: Any) -> plan.Allocator:
        return planned(nn.Linear(64, 64), **changes).allocator

    assert of() == of(chip="TPU-v5e") == of(allocator="exact") == plan.EXACT
    assert of(chip="H100-SXM5") == of(allocator="cuda") == TORCH
    ascend = of(chip="Ascend-910B2")
    assert ascend == of(allocator="npu") == of(allocator=ascend)
    assert ascend.taken(np.array([1, 480, 481, 2**20])).tolist() == [512, 512, 1024, 2**20 + 512]
    mine = plan.Allocator("mine", granule=4096)
    assert of(allocator=mine) == mine
    assert planned(nn.Linear(64, 64), allocator=mine).parameters == 5 * 4096


def test_half_precision_keeps_less_for_backward() -> None:
    def images(model: nn.Module, batch: int) -> torch.Tensor:
        return model(torch.empty(batch, 3, 64, 64)).float().sum()  # type: ignore[no-any-return]

    peaks = {
        precision: plan.plan(
            lambda: models.resnet18(10), images, batch=64, optimizer=adamw, precision=precision
        ).activations
        for precision in ("fp32", "bf16")
    }
    assert 0.4 < peaks["bf16"] / peaks["fp32"] < 0.9  # the casts of the parameters are among them


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"chip": "H10-SXM5"}, ArgumentError, "did you mean H100-SXM5"),
        ({"chip": "H100-SXM5", "memory": 5}, ArgumentError, "give one of the two"),
        ({"batch": 0}, ArgumentError, "batch is 0"),
        ({"accumulate": 0}, ArgumentError, "accumulate is 0"),
        ({"devices": 0}, ArgumentError, "devices is 0"),
        ({"devices": True}, ArgumentError, "devices is True"),
        ({"precision": "fp8"}, ArgumentError, "fp8"),
        ({"headroom": 1}, ArgumentError, "headroom=1"),
        ({"memory": -1}, ArgumentError, "memory=-1"),
        ({"allocator": "jemalloc"}, ArgumentError, "expected one of cuda, exact, npu"),
        ({"checkpoint": ["0.weigh"]}, ArgumentError, "no such submodule"),
        ({"model": nn.ReLU()}, ModelError, "ReLU.*no parameter"),
        ({"model": nn.Linear(4, 4).requires_grad_(False)}, ModelError, "no parameter"),
        ({"model": lambda: 3}, ArgumentError, "returned int"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, Any], error: type[Exception], named: str) -> None:
    model = changes.pop("model", nn.Linear(64, 4))
    with pytest.raises(error, match=named):
        planned(model, **changes)


@pytest.mark.parametrize("value", [3.0, torch.ones(2, requires_grad=True), torch.ones(())])
def test_a_loss_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a tensor of one element"):
        plan.plan(nn.Linear(2, 2), lambda model, batch: value, batch=1, optimizer=adamw)


# -- the allocator's replay --------------------------------------------------------------------------------------------


def course(*events: tuple[int, int]) -> Course:
    """Storages by number, each with the bytes that it gets (above 0) or gives back (below 0)."""
    sizes = np.zeros(max(number for number, _ in events) + 1, dtype=np.int64)
    for number, size in events:
        sizes[number] = abs(size)
    return Course(
        numbers=np.array([number for number, _ in events]),
        deltas=np.array([size for _, size in events], dtype=np.int64),
        phases=("forward",) * len(events),
        sizes=sizes,
        kinds=("activations",) * len(sizes),
        early=frozenset(),
    )


CUDA = TORCH


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, Peaks(512, 2 * MIB)),
        (MIB, Peaks(MIB, 2 * MIB)),
        (MIB + 1, Peaks(MIB + 512, 20 * MIB)),
        (10 * MIB - 512, Peaks(10 * MIB - 512, 20 * MIB)),
        (11 * MIB, Peaks(12 * MIB, 12 * MIB)),  # 1 MiB would be left: the block stays whole
        (32 * MIB, Peaks(32 * MIB, 32 * MIB)),
    ],
)
def test_segments_are_those_of_torchs_allocator(size: int, expected: Peaks) -> None:
    assert replay(course((0, size), (0, -size)), CUDA) == expected


def test_neighbours_are_joined_and_unused_segments_given_back_before_memory_runs_out() -> None:
    life = course((0, 4 * MIB), (1, 4 * MIB), (0, -4 * MIB), (1, -4 * MIB), (2, 39 * MIB // 2), (2, -39 * MIB // 2))
    assert replay(life, CUDA) == Peaks(20 * MIB, 20 * MIB)  # half a MiB is left of 20: not cut off
    other = course((0, 30 * MIB), (0, -30 * MIB), (1, 40 * MIB), (1, -40 * MIB))
    assert replay(other, CUDA) == Peaks(40 * MIB, 70 * MIB)
    assert replay(other, CUDA, limit=40 * MIB) == Peaks(40 * MIB, 40 * MIB)
    assert replay(other, CUDA, limit=38 * MIB) is None


# -- counting ----------------------------------------------------------------------------------------------------------


def test_tracked_bytes_are_those_that_torchs_own_profiler_sees_of_whole_tensors() -> None:
    """Additions have no buffers of their own: the allocator's events differ by a few scalars only."""

    def work() -> list[torch.Tensor]:
        kept = []
        for index in range(1, 6):
            one = torch.ones(index * 1000)
            kept.append((one + 1) * 2)
            kept = kept[-2:]
        return kept

    with Tracker("cpu") as tracker:
        tracked = work()
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    now = highest = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        highest = max(highest, now)
    assert tracker.highest == pytest.approx(highest, rel=0.001)
    assert tracker.change == sum(tensor.untyped_storage().nbytes() for tensor in tracked)


def test_storages_are_counted_once_and_to_their_end() -> None:
    early = torch.ones(100)
    with Tracker("cpu") as tracker:
        view = early[10:].view(9, 10)
        assert (tracker.base, tracker.change) == (400, 0)
        other = view.clone()
        gone = weakref.ref(other)
        assert tracker.change == 360
        del other
        assert gone() is None
        assert tracker.change == 0
        early.resize_(300)
        assert tracker.live == 1200
        del early, view
        assert tracker.live == 0
    assert tracker.peak == 1200


def test_kinds_of_a_step_add_up_on_real_tensors() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Recorder("cpu", [model], [optimizer]) as recorder:
        square(model, 16).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    highest = recorder.course().highest()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert highest["parameters"] == highest["gradients"] == highest["optimizer"] == FLOAT * numbers
    assert recorder.course().peak() == recorder.peak
    assert recorder.course().curves()["gradients"][-1] == 0


# -- the benchmark -----------------------------------------------------------------------------------------------------


def test_the_record_of_a_plan_is_a_prediction_with_both_ways_and_a_picture(tmp_path: Path) -> None:
    options = Options(model="resnet18", data="digits", batch=64, accumulate=2)
    found = bench.run(options, "A100-SXM4-40GB", tmp_path, "accel bench", picture=str(tmp_path / "plan.png"))
    assert records.read(found.path) == found.record
    assert found.record.origin == "predicted"
    part = found.record.plan
    assert part is not None
    assert part.plain.fits
    assert part.checkpointed.activations.value < part.plain.activations.value  # type: ignore[operator]
    assert part.saved_by_accumulation.value == found.plain.saved_by_accumulation
    assert found.record.results.peak_allocated.value == found.plain.peak_allocated
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_of_several_devices_says_what_windows_cost_beside_buckets(tmp_path: Path) -> None:
    asked = ("--model", "resnet18", "--data", "digits", "--batch", "64", "--accumulate", "2", "--out", str(tmp_path))
    shown = CliRunner().invoke(
        app, ["bench", "resnet50", *asked, "--plan", "--chip", "A100-SXM4-40GB", "--devices", "4"]
    )
    assert shown.exit_code == 0, shown.output
    assert "batch 64 x 2, fp32, 4 device(s) (predicted)" in shown.output
    assert re.search(r"accumulating takes [\d.]+ MiB more: one batch of 128 would peak at", shown.output)
    record = records.read(next(tmp_path.glob("*.json")))
    assert record.hardware.devices.value == record.hardware.world_size.value == 4
    assert record.workload.global_batch.value == 64 * 2 * 4
    assert record.plan is not None
    assert record.plan.saved_by_accumulation.value is None
    assert "beside DDP's buckets" in (record.plan.saved_by_accumulation.reason or "")


@pytest.mark.parametrize("devices", ["1,2", "0", "two", "-1"])
def test_a_plan_is_of_one_number_of_devices(devices: str) -> None:
    shown = CliRunner().invoke(app, ["bench", "resnet50", "--plan", "--chip", "H100-SXM5", f"--devices={devices}"])
    assert isinstance(shown.exception, ArgumentError)
    assert "expected one number from 1" in str(shown.exception)


@pytest.mark.parametrize(
    ("changes", "picture", "named"),
    [
        ({"evaluate": True, "data": "digits"}, None, "leave out"),
        ({"compile": True}, None, "leave out"),
        ({}, "plan.gif", r"ends in \.png"),
        ({}, "absent/plan.png", "folder does not exist"),
    ],
)
def test_a_plan_with_options_of_a_run_is_refused(
    changes: dict[str, Any], picture: str | None, named: str, tmp_path: Path
) -> None:
    options = replace(Options(model="resnet18", data="synthetic", size=32), **changes)
    where = None if picture is None else str(tmp_path / picture)
    with pytest.raises(ArgumentError, match=named):
        bench.run(options, "H100-SXM5", tmp_path, "accel bench", picture=where)
