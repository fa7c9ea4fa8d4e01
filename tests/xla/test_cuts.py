"""Where the graph is cut, how often something is compiled, and what is said when it does not stop."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn

from accel import models
from accel.testing.models import assert_close, data, mlp, sgd, values

FULL, SHORT = 8, 3  # samples of a batch, and of the last one


def loader(full=4):
    return [data(FULL, seed=i) for i in range(full)] + [data(SHORT, seed=9)]


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), torch.optim.Adam])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_counter_is_flat_once_each_shape_was_seen(start, compiles, caplog, make, accumulate):  # T59
    """Cosine from 1 to 0, a value read after every step, a short last batch, evaluation after every pass."""
    session = start(accumulate=accumulate)
    model = mlp()
    called, optimizer = session.prepare(model, make(model.parameters()))
    epochs, windows = 6, math.ceil(5 / accumulate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * windows)
    meter, counted, steps = session.meter(), [], 0
    for epoch in range(epochs):
        called.train()
        for x, y in session.batches(loader(), epoch=epoch, short="keep"):
            loss = loss_of(called, x, y)
            session.backward(loss)
            result = session.step(optimizer, scheduler=scheduler)
            meter.add(weight=len(x), loss=loss.detach())
            if result.boundary:
                steps += 1
                assert math.isfinite(meter.read(reset=True)["loss"])
        called.eval()
        with torch.no_grad():
            for x, y in session.batches(loader(), train=False):
                meter.add(weight=len(x), loss=loss_of(called, x, y))
        meter.read(reset=True)
        counted.append(compiles())
    assert steps == epochs * windows >= 10
    assert counted[1:] == counted[1:2] * (epochs - 1), counted
    assert optimizer.param_groups[0]["lr"] == 0.0
    assert warnings(caplog) == []


@pytest.mark.parametrize("short", ["keep", "drop"])
def test_counter_is_flat_for_fifty_steps(start, compiles, caplog, short):  # T59
    """Accumulation 3 over 8 batches of which the last is short, cosine, a value logged after every step."""
    session = start(accumulate=3)
    called, optimizer = session.prepare(model := mlp(), sgd(model, 1.0, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 51)
    meter, counted = session.meter(), []
    for epoch in range(17):
        for x, y in session.batches(loader(7), epoch=epoch, short=short):
            loss = loss_of(called, x, y)
            session.backward(loss)
            meter.add(loss=loss.detach())
            if session.step(optimizer, scheduler=scheduler).boundary:
                assert math.isfinite(meter.read(reset=True)["loss"])
                counted.append(compiles())
    assert len(counted) == 51
    assert counted[6:] == counted[6:7] * 45, counted  # two passes have shown every shape and every window
    assert warnings(caplog) == []
    assert session.dropped_batches == (17 if short == "drop" else 0)


def test_short_last_batch_is_dropped_in_training_and_kept_in_evaluation(start, compiles, caplog):
    session = start()
    called, optimizer = session.prepare(model := mlp(), sgd(model))
    for epoch in range(3):
        sizes = []
        for x, y in session.batches(loader(), epoch=epoch):
            sizes.append(len(x))
            session.backward(loss_of(called, x, y))
            session.step(optimizer)
        assert sizes == [FULL] * 4
    (said,) = [r.getMessage() for r in caplog.records if "is dropped" in r.getMessage()]
    assert said.startswith(f"the last batch, of {SHORT} samples where others have {FULL}, is dropped in each pass")
    assert "short='keep'" in said
    assert session.dropped_batches == 3
    counted = []
    with torch.no_grad():
        for _ in range(3):
            kept = [called(x) for x, _ in session.batches(loader(), train=False)]
            assert [len(y) for y in kept] == [FULL] * 4 + [SHORT]
            counted.append(compiles())
    assert counted[0] == counted[2]


def test_numbers_do_not_depend_on_the_cuts(start):
    expected = mlp()
    plain = sgd(expected, momentum=0.9)
    session = start(accumulate=2)
    called, optimizer = session.prepare(model := mlp(), sgd(model, momentum=0.9))
    for x, y in session.batches(loader(), short="keep"):
        session.backward(loss_of(called, x, y))
        session.step(optimizer)
    for window in (loader()[:2], loader()[2:4], loader()[4:]):
        for x, y in window:
            (loss_of(expected, x, y) / len(window)).backward()
        plain.step()
        plain.zero_grad()
    assert_close(values(session.unwrap(called)), values(expected), 1e-5)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_graph_runs_a_micro_batch_and_nothing_else(start, runs, clip, accumulate):  # T24
    session = start(accumulate=accumulate, clip_norm=clip)
    called, optimizer = session.prepare(model := mlp(), sgd(model, momentum=0.9))
    session.backend.device.flush()
    before = runs()
    for i, (x, y) in enumerate(session.batches([data(FULL)] * 6), 1):
        session.backward(loss_of(called, x, y))
        assert runs() - before == i - 1  # nothing ran before the cut
        session.step(optimizer)
        assert runs() - before == i


def test_evaluation_cuts_after_each_batch(start, runs):
    session = start()
    called = session.prepare(mlp())
    session.backend.device.flush()
    before, kept = runs(), []
    with torch.no_grad():
        for i, (x, _) in enumerate(session.batches([data(FULL)] * 3, train=False)):
            assert runs() - before == i
            kept.append(called(x))
    assert runs() - before == 3


@pytest.mark.parametrize(("name", "size"), [("resnet18", 32), ("resnet50", 32)])
def test_resnet_trains_as_on_the_cpu(start, compiles, backend, name, size):
    """Residual branches begin at zero, as in the recipe: else fp32 itself is 5e-3 from fp64 after three such steps."""
    images = [torch.randn(8, 3, size, size, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    batches = [(x, torch.arange(8)) for x in images]
    torch.manual_seed(0)
    make = getattr(models, name)
    expected = make(10, zero_init_residual=True)
    model = make(10)
    model.load_state_dict(expected.state_dict())
    plain = sgd(expected, 0.01, momentum=0.9)
    for x, y in batches:
        nn.functional.cross_entropy(expected(x), y).backward()
        plain.step()
        plain.zero_grad()
    session = start()
    called, optimizer = session.prepare(model, sgd(model, 0.01, momentum=0.9))
    fallbacks = backend.device.counters()["fallbacks"]
    for x, y in session.batches(batches):
        session.backward(nn.functional.cross_entropy(called(x), y))
        session.step(optimizer)
    assert compiles() <= 2
    assert backend.device.counters()["fallbacks"] == fallbacks
    assert_close(values(session.unwrap(called)), values(expected), 1e-5)


# -- what is said ------------------------------------------------------------------------------------------------------


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.module == "_cuts" and r.levelno >= logging.WARNING]


def test_a_graph_that_is_new_in_every_step_is_named(start, caplog):  # T59
    session = start()
    called, optimizer = session.prepare(model := mlp(), sgd(model))
    for i, (x, y) in enumerate(session.batches([data(FULL)] * 12)):
        loss = loss_of(called, x, y)
        for _ in range(max(0, i - 5)):  # a number of the host that changes the computation
            loss = loss + loss_of(called, x, y)
        session.backward(loss)
        session.step(optimizer)
    said = warnings(caplog)
    assert len(said) == 2, said  # at the second and the fourth, not at each
    assert said[0].startswith("step 8: 1 graph(s) compiled (")
    assert "known shape, in 2 step(s) so far" in said[0]
    assert ".item()" in said[0]


@pytest.mark.parametrize("before", [0, 4])
def test_a_shape_that_is_new_in_every_step_is_named_once(start, caplog, before):  # T59
    session = start()
    called, optimizer = session.prepare(model := mlp(), sgd(model))
    least = 20 + 10 * before  # sizes that no other test of the process has compiled
    for x, y in session.batches([data(FULL)] * before + [data(least + i) for i in range(10)]):
        session.backward(loss_of(called, x, y))
        session.step(optimizer)
    said = warnings(caplog)
    assert len(said) == 1, said
    assert said[0].startswith("step 8: ")
    newest = least + (3 if before else 7)
    assert f"({newest - 1}, 6) float32, ({newest - 1}, 3) float32; ({newest}, 6) float32" in said[0]


READS = {
    "item": lambda loss: loss.item(),
    "if": lambda loss: 1 if loss > 0 else 0,
    "numpy": lambda loss: loss.detach().cpu().numpy(),
    "print": lambda loss: f"{loss}",
}


@pytest.mark.parametrize("how", READS)
def test_a_line_that_reads_a_value_in_every_step_is_named_once(start, caplog, how):  # T59
    session = start()
    called, optimizer = session.prepare(model := mlp(), sgd(model))
    for x, y in session.batches([data(FULL)] * 12):
        loss = loss_of(called, x, y)
        seen = READS[how](loss)
        with torch.device(session.device):  # a mode of the user's, open when ours is taken away
            session.backward(loss)
            session.step(optimizer)
    assert seen is not None
    (said,) = warnings(caplog)
    assert said.startswith("step 4: a value is read on the host before step() in each micro-batch, at test_cuts.py:")
    assert f'"{how}": lambda loss' in said
    assert torch.overrides._len_torch_function_stack() == 0


def test_a_value_read_after_the_step_or_now_and_then_is_no_fault(start, caplog):
    session = start()
    called, optimizer = session.prepare(model := mlp(), sgd(model))
    for i, (x, y) in enumerate(session.batches([data(FULL)] * 12)):
        loss = loss_of(called, x, y)
        if i % 5 == 0:
            loss.item()
        session.backward(loss)
        session.step(optimizer)
        assert math.isfinite(loss.item())
    assert warnings(caplog) == []


def test_an_operation_that_runs_on_the_host_is_named_once(start, caplog, backend):
    session = start()
    called, optimizer = session.prepare(model := mlp(), sgd(model))
    before = backend.device.counters()["fallbacks"]
    for x, y in session.batches([data(FULL)] * 3):
        weight = torch.histc(x.reshape(-1), bins=4).sum()
        session.backward(loss_of(called, x, y) * weight)
        session.step(optimizer)
    assert backend.device.counters()["fallbacks"] - before == 3
    assert warnings(caplog) == [
        "step 1: aten::histc ran on the host, as the device lacks it; each use waits for a copy"
    ]


def test_reading_a_value_is_no_fall_back(start, backend):
    before = backend.device.counters()["fallbacks"]
    assert torch.ones(3, device=start().device).sum().item() == 3
    assert backend.device.counters()["fallbacks"] == before
