"""`accel bench resnet50` for real on the CPU: a small model, few steps, one rank and two."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from accel import data, records
from accel.bench._input import counts
from accel.bench._options import Options
from accel.bench.resnet50 import run
from accel.errors import ArgumentError, DataError, UnsupportedError
from accel.testing.ranks import run_ranks
from tests.pictures import tree

SMALL: dict[str, Any] = {"model": "resnet18", "size": 32, "batch": 4, "steps": 2, "repeats": 2, "warmup": 1}


def _bench(out: str, **options: Any) -> str | None:
    outcome = run(Options(**SMALL | options), out, "accel bench resnet50")
    return None if outcome is None else str(outcome[0])


def _bench_two(out: str) -> str | None:
    return _bench(out, accumulate=2, evaluate=True, precision="bf16", size=16)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_BACKEND", "cpu")


def test_one_rank_trains_and_records_everything(tmp_path: Path) -> None:
    path = _bench(str(tmp_path / "results"))
    assert path is not None
    record = records.read(path)
    assert list((tmp_path / "results").iterdir()) == [Path(path)]
    assert (record.origin, record.backend.name, record.workload.delivery) == ("measured", "cpu", "in the loop")
    assert record.workload.parameters.value == 11_181_642  # resnet18 with ten classes
    assert record.workload.global_batch.value == 4
    assert record.numerics.policy == "fp32"
    assert record.numerics.in_force
    assert record.versions.keys() >= {"accel", "torch", "python", "os"}
    assert record.protocol.threads.value  # T74
    assert record.protocol.threads_source
    results = record.results
    assert results.throughput.value
    assert len(results.throughput_repeats.values) == 2
    assert len(results.step_times.values) == 4
    warmup = record.protocol.warmup_steps.value
    assert warmup in range(2, 12)  # one was asked for; on until the step time is still
    assert [step for step, _ in results.loss_curve.points] == list(range(1, warmup + 5))
    assert all(value is not None and 0 < value < 10 for _, value in results.loss_curve.points)
    assert results.accuracy.reason is not None
    assert results.compile_time.reason is not None
    assert (results.compiles.value, results.fallbacks.value) == (0, 0)
    assert results.peak_reserved.value
    assert results.data_share.value is not None
    assert results.reduce_overlap.reason == "one rank reduces nothing"
    assert record.disturbance is not None
    assert record.disturbance.samples.value
    assert record.disturbance.other_load.value is not None
    assert record.goal is not None
    assert (record.goal.epoch_basis, record.goal.epoch_images.value) == ("extrapolated", 1437 // 4 * 4)
    assert record.goal.epoch_time.value == pytest.approx(1436 / results.throughput.value)
    assert record.input is None
    work = record.efficiency
    assert work is not None
    assert (work.macs_forward.unit, work.flops_forward.unit) == ("MAC/image", "FLOP/image")  # T26
    assert 2 * work.macs_forward.value <= work.flops_forward.value < 2.1 * work.macs_forward.value
    assert 2.5 < work.flops_training.value / work.flops_forward.value < 3.1
    assert (work.mfu.value, work.peak.value) == (None, None)  # T25: the chip of this machine has no peak in the table
    assert work.mfu.reason
    assert results.throughput_repeats.values == pytest.approx(
        [2 * 4 / sum(results.step_times.values[:2]), 2 * 4 / sum(results.step_times.values[2:])]
    )


def test_two_ranks_write_one_record_over_both(tmp_path: Path) -> None:
    first, second = run_ranks(_bench_two, 2, str(tmp_path), timeout=240, env={"ACCEL_BACKEND": "cpu"})
    assert second is None
    assert [str(path) for path in tmp_path.iterdir()] == [first]
    record = records.read(first)
    assert record.hardware.world_size.value == record.hardware.devices.value == 2
    assert record.hardware.hosts.value == 1
    assert record.workload.global_batch.value == 2 * 2 * 4
    assert (record.numerics.policy, record.numerics.in_force["autocast"]) == ("bf16", "bfloat16")
    assert record.results.accuracy.value is not None
    overlap = record.results.reduce_overlap.value
    assert overlap is not None
    assert 0 <= overlap <= 1
    assert record.results.backward_alone_time.value
    throughput, each = record.results.throughput.value, record.results.throughput_per_device.value
    assert throughput is not None
    assert each == throughput / 2


def test_synthetic_data_is_said_to_be_synthetic(tmp_path: Path) -> None:
    path = _bench(str(tmp_path / "named.json"), data="synthetic", steps=1, repeats=1)
    assert path == str(tmp_path / "named.json")
    record = records.read(path)
    assert (record.workload.data, record.workload.delivery) == ("synthetic", "synthetic")


def test_epochs_give_the_number_of_steps(tmp_path: Path) -> None:
    path = _bench(str(tmp_path), steps=None, epochs=1, batch=128)
    assert path is not None
    record = records.read(path)
    steps, repeats, warmup = (getattr(record.protocol, name).value for name in ("steps", "repeats", "warmup_steps"))
    assert steps * repeats + warmup == 1437 // 128


def _folder(out: str, photos: str, **options: Any) -> str | None:
    small = {"batch": 4, "size": 16, "workers": 1, "warmup": 2, "repeats": 1}
    return _bench(out, data=f"folder:{photos}", steps=None, **{**small, **options})


def test_the_time_to_an_accuracy_over_ranks_on_a_folder_of_photographs(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", classes=3, each=17)
    held_out = len(data.image_folder(photos, False))
    assert held_out % 2, "it must not divide by the ranks"
    out = str(tmp_path / "out")
    options = {"epochs": 2, "target": 0.01}  # any model gets one image right; tests/unit/test_goal.py has the others
    first, _ = run_ranks(partial(_folder, **options), 2, out, str(photos), timeout=240, env={"ACCEL_BACKEND": "cpu"})
    record = records.read(first)
    goal = record.goal
    assert goal is not None
    assert goal.evaluated_images.value == held_out  # each file once, over both ranks
    assert len(goal.accuracies.values) == 2
    assert record.results.accuracy.value == goal.accuracies.values[-1]
    steps = (51 - held_out) // 2 // 4  # short batches are dropped
    assert goal.epoch_images.value == steps * 8
    assert record.protocol.steps.value + record.protocol.warmup_steps.value == 2 * steps
    assert (goal.epoch_basis, goal.epoch_time.value < goal.evaluated_at.values[-1]) == ("measured", True)
    first_reached = next(i for i, accuracy in enumerate(goal.accuracies.values) if accuracy >= 0.01)
    assert (goal.outcome, goal.time_to_target.value) == ("reached", goal.evaluated_at.values[first_reached])
    assert goal.epochs_to_target.value == first_reached + 1


def test_a_truncated_file_ends_the_run_with_its_name(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", classes=2, each=12)
    broken = Path(data.image_folder(photos, True).files[5][0])
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(DataError) as caught:
        _folder(str(tmp_path / "out"), str(photos), epochs=4, batch=2)
    assert caught.value.line.startswith(f"{broken} cannot be decoded as an image: ")
    assert not list((tmp_path / "out").glob("*.json"))


def test_workers_are_advised_from_trials(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", classes=2, each=20)
    path = _folder(str(tmp_path / "out"), str(photos), epochs=1, batch=2, tune_input=True)
    assert path is not None
    advice = records.read(path).input
    assert advice is not None
    assert [trial.workers.value for trial in advice.trials] == counts(max(1, len(os.sched_getaffinity(0))))
    assert all(trial.throughput.value for trial in advice.trials)
    assert advice.advice.startswith(f"use --workers {advice.workers.value}")
    assert "memory cannot be pinned" in advice.advice  # and the capability table's reason
    synthetic = _bench(str(tmp_path / "synthetic"), data="synthetic", steps=1, repeats=1, tune_input=True)
    assert synthetic is not None
    record = records.read(synthetic)
    assert record.input is not None
    assert record.input.workers.reason == "synthetic data is one batch that stays on the device"
    assert record.goal is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch": 0}, "batch is 0; expected at least 1"),
        ({"batch": -3}, "batch is -3"),
        ({"steps": 0}, "steps is 0"),
        ({"accumulate": 0}, "accumulate is 0"),
        ({"repeats": -1}, "repeats is -1"),
        ({"warmup": 0}, "warmup is 0"),
        ({"size": 0}, "size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"model": "resnet51"}, "model is 'resnet51'; expected one of resnet50, resnet18"),
        ({"epochs": 2}, "give one of the two"),
        ({"data": "synthetic", "evaluate": True}, "nothing to evaluate"),
        ({"data": "synthetic", "target": 0.5}, "nothing to evaluate"),
        ({"target": 0.5}, "target is 0.5, but not for how long to train at most; add --epochs"),
        ({"target": 1.5, "steps": None, "epochs": 2}, "target is 1.5; expected an accuracy above 0 and up to 1"),
        ({"target": float("nan"), "steps": None, "epochs": 2}, "target is nan"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"data": "digit"}, "data is 'digit'.*did you mean 'digits'"),
        ({"steps": None, "epochs": 1, "batch": 1000, "repeats": 3}, "epochs is 1, which gives 1 optimizer steps"),
    ],
)
def test_values_that_cannot_be_used_are_refused_before_anything_runs(
    options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=match):
        _bench(str(tmp_path), **options)
    assert list(tmp_path.iterdir()) == []


def test_pinned_memory_that_the_backend_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="memory.pinned"):
        _bench(str(tmp_path), pin=True)


def test_a_batch_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="batch is 2000, but there are 1437 images"):
        _bench(str(tmp_path), batch=2000)


def test_the_command_line_answers_bad_input_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "accel", "bench", "resnet50", "--out", str(tmp_path / "file" / "results")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=_environment())
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "cannot write the record" in line
    assert "--out" in line


def test_a_record_made_on_the_command_line_is_compared_there(tmp_path: Path) -> None:
    options = [f"--{name}={value}" for name, value in SMALL.items()]
    bench = [sys.executable, "-m", "accel", "bench", "resnet50", "--out", str(tmp_path), *options]
    compare = [sys.executable, "-m", "accel", "compare", str(tmp_path), "--html", str(tmp_path / "page.html")]
    made = subprocess.run(bench, capture_output=True, text=True, timeout=240, check=True, env=_environment())
    assert "images/s" in made.stdout
    shown = subprocess.run(compare, capture_output=True, text=True, timeout=120, check=True, env=_environment())
    assert "images/s meas" in shown.stdout
    assert (tmp_path / "page.html").read_text().count("<svg") == 3
    wrong = [*compare[:4], str(tmp_path / "page.html")]
    refused = subprocess.run(wrong, capture_output=True, text=True, timeout=120, check=False, env=_environment())
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}


def test_a_vit_is_trained_at_the_size_asked_for(tmp_path: Path) -> None:
    path = _bench(str(tmp_path), model="vit_b_16", batch=2, steps=1)
    assert path is not None
    record = records.read(path)
    assert record.benchmark == "vit_b_16"
    assert record.workload.parameters.value == 85_658_890  # 10 classes, 4 patches of 32 px
    assert record.efficiency is not None
    assert record.efficiency.flops_training.value


def _scale(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    small = [
        "--model",
        "resnet18",
        "--batch",
        "2",
        "--steps",
        "1",
        "--warmup",
        "2",
        "--repeats",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    command = [sys.executable, "-m", "accel", "bench", "resnet50", *small, *arguments]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "COLUMNS": "160"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)


def test_one_command_tells_how_a_run_scales(tmp_path: Path) -> None:
    done = _scale(tmp_path, "--devices", "1,2")
    assert done.returncode == 0, done.stderr[-3000:]
    found = [records.read(path) for path in sorted((tmp_path / "out").glob("*.json"))]
    assert sorted(record.hardware.devices.value or 0 for record in found) == [1, 2]
    (two,) = (record for record in found if record.hardware.devices.value == 2)
    assert two.results.reduce_time.value
    assert two.results.backward_time.value
    assert "Scaling: the same work a device on more devices" in done.stdout
    assert "--devices" not in two.command
    cores = len(os.sched_getaffinity(0))
    assert two.protocol.threads.value == max(1, cores // 2)  # T74: cores over ranks, whatever launched them
    assert two.protocol.threads_source


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--devices", "2"], "--devices is '2'; expected two or more numbers in ascending order"),
        (["--devices", "2,1"], "--devices is '2,1'"),
        (["--devices", "one,2"], "--devices is 'one,2'"),
        (["--devices=1,2", "--aot", "v5e:1x1"], "--aot compiles and runs nothing"),
        (["--devices=1,2", "--out", "one.json"], "expected a folder"),
        (["--devices=1,2", "--batch", "100000"], "the run on 1 devices ended with exit code"),
    ],
)
def test_a_series_that_cannot_be_run_is_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = _scale(tmp_path, *arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert not list(tmp_path.rglob("*.json"))
