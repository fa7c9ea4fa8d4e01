"""ResNet v1.5 (He et al., https://arxiv.org/abs/1512.03385) with torchvision's parameter names and initialisation.

"v1.5" places the stride of a bottleneck in its 3x3 convolution instead of the first 1x1, which is what NVIDIA's,
MLPerf's and torchvision's ResNet-50 do; v1 has fewer operations and must not be compared with it. The model is in the
project because torchvision's binary does not import beside every vendor's build of torch.

Shape legend: N batch, C channels, H and W height and width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from accel import recompute
from accel.errors import ArgumentError

Norm = Callable[[int], nn.Module]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: (N, `inputs`, H, W) -> (N, `width`, H / stride, W / stride)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm_layer: Norm) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, width, stride)
        self.bn1 = norm_layer(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(width, width)
        self.bn2 = norm_layer(width)
        self.downsample = _shortcut(inputs, width, stride, norm_layer)

    @property
    def last_norm(self) -> nn.Module:
        return self.bn2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + shortcut)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, strided 3x3, 1x1 around a shortcut: (N, `inputs`, H, W) -> (N, 4 * `width`, H / stride, W / stride)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm_layer: Norm) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv1x1(inputs, width)
        self.bn1 = norm_layer(width)
        self.conv2 = _conv3x3(width, width, stride)  # v1.5: the stride stands here
        self.bn2 = norm_layer(width)
        self.conv3 = _conv1x1(width, outputs)
        self.bn3 = norm_layer(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, outputs, stride, norm_layer)

    @property
    def last_norm(self) -> nn.Module:
        return self.bn3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + shortcut)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A ResNet of `block`s, `depths[i]` of them in stage i: (N, 3, H, W) -> logits (N, K).

    `zero_init_residual` starts the scale of each block's last normalisation at 0, so that every block begins as the
    identity (Goyal et al., https://arxiv.org/abs/1706.02677, section 5.1). `norm_layer` makes a normalisation from a
    channel count; `nn.Identity` or a GroupNorm gives a model without batch statistics. Raises `ArgumentError` for
    `num_classes` below 1 and for `zero_init_residual` with a normalisation that has no scale. `checkpoint` keeps only
    each block's input for backward and computes the block again there: less memory, the same numbers.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        num_classes: int = 1000,
        zero_init_residual: bool = False,
        norm_layer: Norm = nn.BatchNorm2d,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        if num_classes < 1:
            raise ArgumentError(f"num_classes is {num_classes}; a classifier needs at least 1 class")
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = norm_layer(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, depths[0], 1, norm_layer)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], 2, norm_layer)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], 2, norm_layer)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], 2, norm_layer)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        self._initialise(zero_init_residual)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            for block in stage:
                x = recompute.checkpoint(block, x) if self.checkpoint and torch.is_grad_enabled() else block(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))  # type: ignore[no-any-return]

    def _initialise(self, zero_init_residual: bool) -> None:
        """Start as torchvision does; normalisation (1, 0) and the classifier keep their own modules' start values."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for module in self.modules() if zero_init_residual else ():
            if isinstance(module, (BasicBlock, Bottleneck)):
                scale = getattr(module.last_norm, "weight", None)
                if scale is None:
                    norm = type(module.last_norm).__name__
                    raise ArgumentError(f"zero_init_residual needs a normalisation with a scale; {norm} has no weight")
                nn.init.zeros_(scale)


def resnet18(
    num_classes: int = 1000,
    zero_init_residual: bool = False,
    norm_layer: Norm = nn.BatchNorm2d,
    checkpoint: bool = False,
) -> ResNet:
    """ResNet-18: 11,689,512 parameters at 1000 classes."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, zero_init_residual, norm_layer, checkpoint)


def resnet50(
    num_classes: int = 1000,
    zero_init_residual: bool = False,
    norm_layer: Norm = nn.BatchNorm2d,
    checkpoint: bool = False,
) -> ResNet:
    """ResNet-50 v1.5: 25,557,032 parameters at 1000 classes, 8.18 GFLOP forward an image of 224 x 224."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, zero_init_residual, norm_layer, checkpoint)


def _conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int, norm_layer: Norm) -> nn.Module | None:
    """The projection of a block that changes its shape; None where the identity fits."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv1x1(inputs, outputs, stride), norm_layer(outputs))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], inputs: int, width: int, depth: int, stride: int, norm_layer: Norm
) -> nn.Sequential:
    blocks = [block(inputs, width, stride, norm_layer)]
    blocks += [block(width * block.expansion, width, 1, norm_layer) for _ in range(1, depth)]
    return nn.Sequential(*blocks)
