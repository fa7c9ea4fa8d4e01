"""Contract of checkpoints in one process: a resumed run goes on as if it had never stopped."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel.errors import (
    CheckpointError,
    WindowError,
)
from accel.testing.models import assert_close, convnet, data, mlp, sgd, values
from accel.testing.training import loss_of


class Tracked:
    """Everything a run has, so that it can be saved, thrown away and loaded."""

    def __init__(self, start: Any, policy: str = "fp32", accumulate: int = 1) -> None:
        self.session = start(precision=policy, accumulate=accumulate)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        self.model, self.optimizer = self.session.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        dataset = TensorDataset(*data(24))
        self.loader = DataLoader(dataset, batch_size=4, shuffle=True)
        self.objects = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        self.seen: list[float] = []

    def train(self, epoch: int, stop: int | None = None) -> None:
        for i, (x, y) in enumerate(self.session.batches(self.loader, epoch=epoch), 1):
            self.seen.append(float(x.sum()))
            self.session.backward(loss_of(self.model, x, y))
            self.session.step(self.optimizer, scheduler=self.scheduler)
            if i == stop:
                return

    def state(self) -> list[torch.Tensor]:
        return values(self.session.unwrap(self.model))


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_resume_in_the_middle_of_an_epoch_goes_on_as_if_never_stopped(
    start: Any, tmp_path: Any, stop: int
) -> None:  # T17, T52, T54
    whole = Tracked(start)
    whole.train(0)
    whole.train(1)
    first = Tracked(start)
    first.train(0, stop)
    first.session.save(tmp_path / "c", epoch=0, **first.objects)
    first.session.close()
    torch.manual_seed(12345)
    second = Tracked(start)
    assert second.session.load(tmp_path / "c", **second.objects) == {"epoch": 0}
    second.train(0)
    second.train(1)
    assert first.seen + second.seen == whole.seen
    assert_close(second.state(), whole.state(), 0)
    assert second.scheduler.state_dict() == whole.scheduler.state_dict()


def test_finished_epoch_is_not_repeated(start: Any, tmp_path: Any) -> None:
    first = Tracked(start)
    first.train(0)
    first.session.save(tmp_path / "c", **first.objects)
    second = Tracked(start)
    second.session.load(tmp_path / "c", **second.objects)
    second.train(0)
    assert second.seen == []
    second.train(1)
    assert len(second.seen) == 6


def test_epoch_that_steps_cut_short_is_resumed_inside(start: Any, tmp_path: Any) -> None:
    whole, first, second = Tracked(start), Tracked(start), Tracked(start)
    whole.session.backend.device.seed(0)
    whole.train(0)
    first.session.backend.device.seed(0)
    for x, y in first.session.batches(first.loader, epoch=0, steps=2):
        first.seen.append(float(x.sum()))
        first.session.backward(loss_of(first.model, x, y))
        first.session.step(first.optimizer, scheduler=first.scheduler)
    first.session.save(tmp_path / "c", **first.objects)
    second.session.load(tmp_path / "c", **second.objects)
    second.train(0)
    assert first.seen + second.seen == whole.seen


def test_batches_of_an_open_window_come_again(start: Any, tmp_path: Any) -> None:
    first = Tracked(start, accumulate=2)
    first.train(0, 3)  # one window done, one micro-batch of the next
    first.session.save(tmp_path / "c", **first.objects)
    second = Tracked(start, accumulate=2)
    second.session.load(tmp_path / "c", **second.objects)
    second.train(0)
    assert second.seen[0] == first.seen[2]
    assert len(second.seen) == 4
    with pytest.raises(WindowError, match="open window"):
        first.session.load(tmp_path / "c", **first.objects)


def test_plain_values_come_back_and_objects_are_checked_before_any_changes(start: Any, tmp_path: Any) -> None:
    first = Tracked(start)
    first.train(0, 2)
    first.session.save(tmp_path / "c", best=0.5, notes={"a": [1, None, "x"], "shape": (1, 2)}, **first.objects)
    second = Tracked(start)
    assert second.session.load(tmp_path / "c", **second.objects) == {
        "best": 0.5,
        "notes": {"a": [1, None, "x"], "shape": (1, 2)},
    }
    before = second.state()
    for bad in ({"model": convnet()}, {"model": second.model, "optimizer": sgd(mlp())}, {"modell": second.model}):
        with pytest.raises(CheckpointError):
            second.session.load(tmp_path / "c", **bad)
        assert_close(second.state(), before, 0)
    with pytest.raises(CheckpointError, match="absent"):
        second.session.load(tmp_path / "absent", **second.objects)


def test_loss_scale_is_saved_and_notes_say_where_it_is_not_used(
    backend: Any, start: Any, tmp_path: Any, caplog: Any
) -> None:  # T17
    if not backend.capabilities()["precision.fp16"].available:
        pytest.skip(f"unsupported by the capability table: {backend.capabilities()['precision.fp16'].why}")
    half, full = Tracked(start, "fp16"), Tracked(start, "fp32")
    for _ in range(3):
        half.session.backward(half.model(torch.full((1, 6), math.inf, device=half.session.device)).sum())
        half.session.step(half.optimizer)
    half.train(0, 2)
    half.session.save(tmp_path / "half", **half.objects)
    full.session.save(tmp_path / "full", **full.objects)
    again = Tracked(start, "fp16")
    again.session.load(tmp_path / "half", **again.objects)
    again.session.backward(again.model(torch.ones(1, 6, device=again.session.device)).sum())
    assert float(again.session.step(again.optimizer).loss_scale) == 65536.0 / 8
    other = Tracked(start, "fp16")
    other.session.load(tmp_path / "full", **other.objects)
    assert "holds no loss scale" in caplog.text
    full.session.load(tmp_path / "half", **full.objects)
    assert "its loss scale is not used" in caplog.text
