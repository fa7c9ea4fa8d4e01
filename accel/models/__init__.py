"""Reference models: plain `torch.nn` modules that know nothing of hardware, sessions or precision."""

from __future__ import annotations

from accel.models.resnet import ResNet, resnet18, resnet50

__all__ = ["ResNet", "resnet18", "resnet50"]
