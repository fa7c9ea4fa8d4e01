"""Small models and data for the suite: quick on every backend, and without random numbers of a device."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

seeding = threading.RLock()  # ranks may be threads of one process, which share torch's generator


def mlp(seed: int = 0) -> nn.Sequential:
    """No BatchNorm: its gradient over a batch is the mean over any split of it."""
    with seeding:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def rivals() -> tuple[nn.Sequential, nn.Sequential]:
    """A generator and its critic."""
    with seeding:
        return mlp(0), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def convnet(seed: int = 0) -> nn.Sequential:
    with seeding:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def data(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (count, 6) and targets (count, 3), fp32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randn(count, 3, generator=generator)


def sgd(model: nn.Module, lr: float = 0.1, **arguments: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr, **arguments)


def values(model: nn.Module) -> list[torch.Tensor]:
    """Copies of the parameters on the CPU."""
    return [p.detach().cpu().clone() for p in model.parameters()]


def assert_close(a: list[torch.Tensor], b: list[torch.Tensor], tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def reference(batches: list[list[Any]], *, lr: float = 0.1, clip: float | None = None, **arguments: Any) -> nn.Module:
    """Plain PyTorch on the CPU in fp32: one step a window, whose micro-batches are averaged."""
    model = mlp()
    optimizer = sgd(model, lr, **arguments)
    for window in batches:
        for x, y in window:
            (nn.functional.mse_loss(model(x), y) / len(window)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model
