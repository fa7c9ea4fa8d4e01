"""Reference models: plain `torch.nn` modules that know nothing of hardware, sessions or precision."""

from __future__ import annotations

from accel.models.resnet import ResNet, resnet18, resnet50
from accel.models.transformer import TransformerLM
from accel.models.vit import VisionTransformer, vit_b_16

__all__ = ["ResNet", "TransformerLM", "VisionTransformer", "resnet18", "resnet50", "vit_b_16"]
