"""Work counted by tracing: units, known figures, linear in batch, and the three phases apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from accel import flops, models
from accel.errors import ArgumentError


@pytest.fixture(scope="module")
def traces() -> dict[int, flops.Trace]:
    return {batch: flops.trace(models.resnet50, batch=batch) for batch in (1, 8)}


# T26
def test_resnet50_forward_is_4_089_gmac_and_8_18_gflop_an_image(traces: dict[int, flops.Trace]) -> None:
    forward = traces[1].tally("forward")
    assert forward.macs == 4_089_184_256
    assert forward.flops == 2 * forward.macs
    assert traces[1].parameters == 25_557_032


# T26
def test_the_first_convolution_is_236027904_flop(traces: dict[int, flops.Trace]) -> None:
    first = next(one for one in traces[1].operations if one.flops)
    assert (first.name, first.flops) == ("aten.convolution", 236_027_904)


# T26
def test_work_is_linear_in_batch_and_training_is_not_a_factor_but_a_count(traces: dict[int, flops.Trace]) -> None:
    one, eight = traces[1], traces[8]
    for phase in ("forward", "backward"):
        assert eight.tally(phase).flops == 8 * one.tally(phase).flops
    assert one.tally("optimizer").flops == 0  # no product in it
    assert eight.tally("optimizer") == one.tally("optimizer")  # and nothing in it depends on the batch
    # Backward needs two products for each of forward, but no gradient of the images: 24.3 GFLOP and not 3 x 8.18.
    assert one.tally().flops == 3 * one.tally("forward").flops - 236_027_904
    assert one.tally().flops == sum(one.tally(phase).flops for phase in flops.PHASES)


def test_the_count_is_that_of_torchs_flop_counter() -> None:
    net = models.resnet18(10).to("meta")
    with FlopCounterMode(display=False) as counter:
        net(torch.empty(2, 3, 32, 32, device="meta")).sum().backward()
    assert flops.trace(models.resnet18, batch=2, size=32, classes=10).tally().flops == counter.get_total_flops()


def test_vit_b_16_is_17_56_gmac_with_its_attention() -> None:
    counted = flops.trace(models.vit_b_16, batch=1)
    assert counted.parameters == 86_567_656
    assert counted.tally("forward").macs == 17_563_828_224


def test_bytes_of_a_step_are_counted_by_operation() -> None:
    def line(classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, classes), nn.ReLU())

    counted = flops.trace(line, batch=2, size=4, classes=5)
    by_name = {one.name: one for one in counted.operations if one.phase == "forward"}
    # addmm reads the bias (5), the images (2 x 48) and the weight (48 x 5), and writes 2 x 5; fp32 has 4 bytes.
    product = by_name["aten.addmm"]
    assert (product.flops, product.bytes) == (2 * 2 * 48 * 5, 4 * (5 + 96 + 240 + 10))
    assert (by_name["aten.relu"].elements, by_name["aten.relu"].bytes) == (10, 4 * 20)
    assert not any("view" in name or "prim." in name for name in by_name)


def test_a_16_bit_step_does_the_same_products_and_moves_fewer_bytes() -> None:
    def traced(precision: str) -> flops.Tally:
        return flops.trace(models.resnet18, batch=64, size=64, precision=precision).tally()

    full, half = traced("fp32"), traced("bf16")
    assert half.flops == full.flops
    assert half.bytes < full.bytes


def bad(
    model: Callable[..., nn.Module] = models.resnet18, batch: object = 1, size: object = 32, precision: str = "fp32"
) -> None:
    flops.trace(model, batch=batch, size=size, precision=precision)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"batch": 0}, "batch is 0; expected an integer from 1"),
        ({"batch": 2.5}, r"batch is 2\.5"),
        ({"batch": True}, "batch is True"),
        ({"size": -1}, "size is -1"),
        ({"precision": "fp8"}, "precision is 'fp8'; expected one of fp32, tf32, bf16, fp16"),
    ],
)
def test_what_cannot_be_traced_is_refused(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        bad(**arguments)  # type: ignore[arg-type]
