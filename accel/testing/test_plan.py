"""Contract of `accel.plan`: the peak it foretells is the peak that is measured, with and without checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from accel import models, plan
from accel.testing.test_memory import needs

SIZE, BATCH, CLASSES, STEPS = 32, 32, 10, 5


def made(checkpoint: bool) -> models.ResNet:
    return models.resnet18(CLASSES, checkpoint=checkpoint)


def optimizer(parameters: Any, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4, fused=fused)


def foretold(backend: Any, checkpoint: bool, accumulate: int = 1) -> plan.Plan:
    def loss(model: Any, batch: int) -> torch.Tensor:
        images, labels = torch.empty(batch, 3, SIZE, SIZE), torch.zeros(batch, dtype=torch.int64)
        return cross_entropy(model(images).float(), labels)

    fused = backend.capabilities().offers("train.fused_optimizer")
    return plan.plan(
        lambda: made(checkpoint),
        loss,
        batch=BATCH,
        optimizer=lambda parameters: optimizer(parameters, fused),
        accumulate=accumulate,
        allocator=backend.memory.allocator,
    )


def measured(session: Any, checkpoint: bool, steps: int = STEPS) -> tuple[dict[str, torch.Tensor], int]:
    """The state after `steps` optimizer steps, and the bytes at the peak of the last one."""
    backend = session.backend
    torch.manual_seed(3)
    net = made(checkpoint)
    fused = backend.capabilities().offers("train.fused_optimizer")
    model, sgd = session.prepare(net, optimizer(net.parameters(), fused))
    images = backend.device.move(torch.randn(BATCH, 3, SIZE, SIZE))
    labels = backend.device.move(torch.arange(BATCH) % CLASSES)

    def window() -> None:
        for _ in range(session.accumulate):
            session.backward(cross_entropy(model(images).float(), labels))
            session.step(sgd)

    for _ in range(steps - 1):
        window()
    with backend.memory.track() as tracked:
        window()
    state = {name: value.detach().cpu() for name, value in session.unwrap(model).state_dict().items()}
    return state, tracked.peak or 0


def test_the_plan_foretells_the_measured_peak_and_what_checkpointing_saves(backend: Any, start: Any) -> None:  # T08
    needs(backend, "memory.track")
    runs = {}
    for checkpoint in (False, True):
        session = start()
        before = backend.memory.stats().allocated or 0  # what other tests hold
        state, peak = measured(session, checkpoint)
        runs[checkpoint] = state, peak - before, foretold(backend, checkpoint)
        session.close()
    (plain, peak, planned), (recomputed, lower, planned_lower) = runs[False], runs[True]
    torch.testing.assert_close(recomputed, plain, rtol=0, atol=0)
    assert int(recomputed["bn1.num_batches_tracked"]) == STEPS
    assert peak == pytest.approx(planned.peak_allocated, rel=0.05)
    assert lower == pytest.approx(planned_lower.peak_allocated, rel=0.05)
    assert planned_lower.activations < 0.8 * planned.activations


def test_the_plan_foretells_the_peak_of_accumulation_and_what_it_saves(backend: Any, start: Any) -> None:
    needs(backend, "memory.track")
    session = start(accumulate=2)
    before = backend.memory.stats().allocated or 0
    _, peak = measured(session, False, steps=2)
    planned = foretold(backend, False, accumulate=2)
    assert peak - before == pytest.approx(planned.peak_allocated, rel=0.05)
    assert planned.saved_by_accumulation == planned.whole_batch_peak - planned.peak > 0
