"""Contract of how a step runs: graphs, fused optimizers, memory layout and streams change speed, not results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accel.capabilities import Support
from accel.errors import UnsupportedError
from accel.testing.models import assert_close, convnet, values


def images(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(4, 3, 8, 8, generator=generator), torch.arange(4) % 3) for _ in range(count)]


def trained(session: Any, called: Any, optimizer: Any) -> list[torch.Tensor]:
    for x, y in session.batches(images(4)):
        session.backward(nn.functional.cross_entropy(called(x).float(), y))
        session.step(optimizer)
    return values(session.unwrap(called))


def test_recorded_steps_train_as_eager_ones_or_are_refused(backend: Any, start: Any) -> None:
    session = start()
    model = convnet()
    called, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    sample = torch.zeros(4, 3, 8, 8, device=session.device)
    if not backend.capabilities().offers("train.graphs"):
        with pytest.raises(UnsupportedError):
            backend.device.graphed(called, sample, None)
        return
    statistics = called[1].running_mean.clone()
    graphed = backend.device.graphed(called, sample, None)
    assert torch.equal(called[1].running_mean, statistics), "recording moved BatchNorm's statistics"
    got = trained(session, graphed, optimizer)
    other = start()
    again = convnet()
    assert_close(got, trained(other, *other.prepare(again, torch.optim.SGD(again.parameters(), lr=0.1))), 1e-4)


def test_fused_optimizers_train_as_plain_ones(backend: Any, start: Any) -> None:
    if not backend.capabilities().offers("train.fused_optimizer"):
        cell = backend.capabilities().get("train.fused_optimizer")
        pytest.skip(f"unsupported by the capability table: {cell.why if cell else 'train.fused_optimizer: not listed'}")
    results = []
    for fused in (False, True):
        session = start()
        model = convnet()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=fused)
        results.append(trained(session, *session.prepare(model, optimizer)))
    assert_close(results[0], results[1], 1e-4)


def test_channels_last_is_a_layout_and_not_another_model_or_is_refused(backend: Any, start: Any) -> None:
    if not backend.capabilities().offers("prepare.channels_last"):
        with pytest.raises(UnsupportedError, match=r"prepare\.channels_last"):
            start().prepare(convnet(), channels_last=True)
        return
    results = []
    for layout in (False, True):
        session = start()
        model = convnet()
        called, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), channels_last=layout)
        stored = session.unwrap(called)[0].weight.is_contiguous(memory_format=torch.channels_last)
        if backend.capabilities()["prepare.channels_last"].support is Support.NATIVE:
            assert stored is layout
        results.append(trained(session, called, optimizer))
    assert_close(results[0], results[1], 1e-4)


def test_work_on_another_stream_is_ordered_by_an_event(backend: Any) -> None:
    if not backend.capabilities()["device.stream"].available:
        with pytest.raises(UnsupportedError):
            backend.device.stream()
        return
    side, ready = backend.device.stream(), backend.device.event()
    x = torch.ones(1 << 16, device=backend.device.torch_device)
    for _ in range(8):
        x = x * 2
    ready.record()
    if hasattr(side, "wait_event"):
        side.wait_event(ready)
    ready.synchronize()
    assert ready.query()
    assert x[0].item() == 256
