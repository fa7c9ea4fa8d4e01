"""The reference ResNets: sizes, names, where the stride stands, operation counts, bad arguments."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from accel.errors import ArgumentError
from accel.models import ResNet, TransformerLM, VisionTransformer, resnet18, resnet50


def on_meta(build, **arguments) -> ResNet:
    with torch.device("meta"):
        return build(**arguments)


def forward_flops(batch: int) -> dict[str, int]:
    model = on_meta(resnet50)
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(batch, 3, 224, 224, device="meta"))
    return {module: sum(counts.values()) for module, counts in counter.get_flop_counts().items()}


@pytest.mark.parametrize(("build", "parameters"), [(resnet18, 11_689_512), (resnet50, 25_557_032)])
def test_parameter_count_at_1000_classes(build, parameters) -> None:
    assert sum(p.numel() for p in on_meta(build).parameters()) == parameters


def test_parameters_have_torchvisions_names() -> None:
    names = set(on_meta(resnet50).state_dict())
    assert len(names) == 320  # torchvision's resnet50 has 320 entries, 161 of them parameters
    assert {
        "conv1.weight",
        "bn1.running_var",
        "layer1.0.conv1.weight",
        "layer1.0.bn3.num_batches_tracked",
        "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.bias",
        "layer3.5.conv3.weight",
        "layer4.2.bn3.weight",
        "fc.weight",
        "fc.bias",
    } <= names
    assert "layer1.1.downsample.0.weight" not in names

    small = set(on_meta(resnet18).state_dict())
    assert len(small) == 122
    assert {"layer1.0.conv2.weight", "layer2.0.downsample.0.weight", "layer4.1.bn2.weight"} <= small
    assert "layer1.0.downsample.0.weight" not in small


def test_stride_stands_in_the_3x3_convolution() -> None:
    model = on_meta(resnet50)
    for stage in (model.layer2, model.layer3, model.layer4):
        assert stage[0].conv1.stride == (1, 1)
        assert stage[0].conv2.stride == (2, 2)
        assert stage[0].downsample[0].stride == (2, 2)
        assert all(block.conv2.stride == (1, 1) for block in list(stage)[1:])


def test_forward_operations_are_counted_as_two_a_multiply_add() -> None:  # T26
    one, eight = forward_flops(1), forward_flops(8)
    assert one["ResNet.conv1"] == 236_027_904
    assert one["ResNet"] == pytest.approx(8.18e9, rel=0.01)
    assert eight["ResNet"] == 8 * one["ResNet"]


def test_training_takes_about_three_times_the_forward_operations() -> None:  # T26
    model = on_meta(resnet50)
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, 224, 224, device="meta")).sum().backward()
    assert counter.get_total_flops() / forward_flops(1)["ResNet"] == pytest.approx(3, rel=0.02)


@pytest.mark.parametrize("build", [resnet18, resnet50])
def test_small_images_give_one_row_of_logits_each(build) -> None:
    model = build(num_classes=7)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert model.eval()(torch.randn(1, 3, 33, 47)).shape == (1, 7)


def test_zero_init_residual_makes_every_block_start_as_its_shortcut() -> None:
    plain, zeroed = resnet18(), resnet18(zero_init_residual=True)
    assert torch.equal(plain.layer3[1].bn2.weight, torch.ones(256))
    assert all(not block.bn2.weight.any() for stage in (zeroed.layer1, zeroed.layer4) for block in stage)
    x = torch.randn(2, 64, 8, 8).relu()
    assert torch.equal(zeroed.layer1[1].eval()(x), x)


def test_convolutions_start_by_fan_out() -> None:
    torch.manual_seed(0)
    weight = resnet18().layer4[1].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


def test_a_model_without_batch_statistics_treats_each_image_alone() -> None:
    model = resnet18(num_classes=4, norm_layer=lambda channels: nn.GroupNorm(8, channels))
    assert not list(model.buffers())
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(model(x)[:2], model(x[:2]))


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="num_classes is 0"):
        resnet50(num_classes=0)
    with pytest.raises(ArgumentError, match=r"zero_init_residual needs .* Identity has no weight"):
        on_meta(resnet18, zero_init_residual=True, norm_layer=lambda _: nn.Identity())


def small_images(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(2, 3, 32, 32, generator=generator)


def tokens(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(20, (2, 8), generator=generator)


@pytest.mark.parametrize(
    ("build", "draw"),
    [
        (lambda checkpoint: resnet18(num_classes=3, checkpoint=checkpoint), small_images),
        (lambda checkpoint: VisionTransformer(32, 8, 2, 2, 16, 32, checkpoint=checkpoint), small_images),
        (lambda checkpoint: TransformerLM(20, 8, 2, 2, 16, dropout=0.3, checkpoint=checkpoint), tokens),
    ],
)
def test_recomputed_blocks_give_the_same_model_after_three_steps(build, draw):  # T08
    states = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = build(checkpoint)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            model(draw(generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append(model.state_dict())
    counters = [int(value) for name, value in states[1].items() if name.endswith("num_batches_tracked")]
    assert set(counters) <= {3}
    torch.testing.assert_close(states[1], states[0])
