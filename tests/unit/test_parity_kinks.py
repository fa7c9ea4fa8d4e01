"""Parity at kinks: flips of a ReLU are counted, kinks that no activation shows are named, the rest is tight."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import accel
from accel import parity
from accel.parity import _tolerance
from accel.parity._sketch import RECTIFIED, Sketcher
from accel.testing.parity import other_kernels, record


class Between(nn.Module):
    """A function between two layers, which no hook sees."""

    def __init__(self, function) -> None:
        super().__init__()
        self.first, self.function, self.second = nn.Linear(8, 16), function, nn.Linear(16, 4)

    def forward(self, x):
        return self.second(self.function(self.first(x)))


def traced(model, out, at=0.0):
    """The trace of one step. `at`: what the first layer gives for the first sample's first element."""

    def train():
        with accel.init(backend="cpu") as s:
            torch.manual_seed(0)
            x = torch.randn(32, 8)
            x[0] = 0
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(torch.randn(parameter.shape) / 4)
                next(m for m in model.modules() if isinstance(m, nn.Linear)).bias[0] = at
            called, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            s.backward(called(x).square().mean())
            s.step(optimizer)

    parity.record(train, out=out, steps=1)
    return parity.read(out)


@pytest.mark.parametrize(
    ("function", "unseen"),
    [
        (functional.relu, []),
        (functional.gelu, []),
        (lambda x: functional.relu(x).flatten(1), []),
        (lambda x: functional.relu(x) * 2 - 1, ["1 ReLU"]),
        (torch.abs, ["AbsBackward0"]),
        (lambda x: torch.clamp(x, -1, 1), ["ClampBackward1"]),
        (lambda x: functional.max_pool1d(x, 3, 1, 1), ["1 MaxPool"]),
    ],
)
def test_kinks_that_no_activation_shows_are_named(tmp_path, function, unseen):
    assert traced(Between(function), tmp_path / "t").run["unseen_kinks"] == unseen


@pytest.mark.parametrize("inplace", [False, True])
def test_every_relu_of_modules_is_seen_and_pooling_keeps_its_place(tmp_path, inplace):
    relu = nn.ReLU(inplace=inplace)
    trace = traced(
        nn.Sequential(nn.Linear(8, 8), relu, nn.MaxPool1d(2), nn.Dropout(0.5), nn.Linear(4, 2)), tmp_path / "t"
    )
    assert trace.run["unseen_kinks"] == []
    assert [layer.unseen for layer in trace.layers] == [0, 0, 32 * 4, 0, 0, 0]
    above = trace.ranks[0]["rectified"][0, :, :, 0]
    assert 0 < above[1, 1] < 32 * 8, "where the ReLU's output is above 0"
    assert above[0].tolist() == [0, 0], "neither the data nor a linear layer's output comes from a ReLU"


def test_the_mask_of_a_relu_tells_how_many_elements_flipped():
    sketcher, generator = Sketcher(torch.device("cpu")), torch.Generator().manual_seed(0)
    x = torch.randn(4, 16, 8, 8, generator=generator).relu()
    other = x.clone()
    where = (x == 0).nonzero()[:9]
    other[tuple(where.T)] = 1e-8
    one, two = sketcher.rectified(x), sketcher.rectified(other)
    assert one.shape == (RECTIFIED,)
    assert two[0] - one[0] == 9
    assert 3 < float(((one - two)[1:] ** 2).mean()) < 27
    assert float(((one - sketcher.rectified(x * 2))[1:] ** 2).mean()) == 0
    assert not sketcher.rectified(x - 0.5).any(), "no ReLU has made it"


def test_a_single_flipped_element_is_no_fault(tmp_path):
    """One element lies on the two sides of 0 in the two runs, by less than rounding; a gradient changes at once."""
    one, other = (traced(Between(nn.ReLU()), tmp_path / str(at), at=at) for at in (1e-8, -1e-8))
    found = parity.compare(one, other)
    assert found.agree, found.verdict
    assert found.curves["forward"].differences[0] < 1e-6
    assert found.curves["backward"].differences[0] > 1e-3
    same = parity.compare(one, traced(Between(nn.ReLU()), tmp_path / "same", at=1e-8))
    assert max(same.curves["backward"].allowed) < 1e-4, "where nothing flips nothing is allowed for it"


def test_where_nothing_flips_a_thousandth_of_a_gradient_is_found_beside_rounding(tmp_path):
    mine = record(tmp_path / "a", "cpu")
    with other_kernels():
        bad = record(tmp_path / "b", "cpu", fault="slight gradient")
    found = parity.compare(mine, bad)
    assert found.finding is not None
    assert (found.finding.step, found.finding.direction, found.finding.layer) == (1, "backward", "fc.weight")
    assert max(found.curves["forward"].differences) > 0


def test_flips_that_chance_allows():
    assert _tolerance.flips(1000, 0.0) == 0
    assert 2 < _tolerance.flips(1000, 1e-7) < 3
    assert 100 < _tolerance.flips(100_000, 1e-3) < 200
    assert _tolerance.flips(10, 1.0) == 10
