"""BatchNorm's running variance as every other backend keeps it: unbiased.

torch_xla 2.9 moves `running_var` towards the biased variance of the batch (n in place of n - 1, seen with the CPU
client; torch: https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html). With few elements a channel,
as in the last stages of a ResNet on small images, an evaluation would differ by some percent between backends. The
step's own output takes the biased variance on all backends and is left alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def correct(model: nn.Module) -> None:
    """Let each BatchNorm of `model` keep the unbiased variance, by hooks that are part of the step's graph."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.running_var is not None:
            _Correction(module)


class _Correction:
    """Of one module: what its running variance was before a forward, and the correction after it."""

    def __init__(self, module: _BatchNorm) -> None:
        self._before: torch.Tensor | None = None
        module.register_forward_pre_hook(self._remember)
        module.register_forward_hook(self._correct)

    def _remember(self, module: _BatchNorm, args: Any) -> None:
        self._before = (
            module.running_var.detach().clone() if module.training and module.running_var is not None else None
        )

    def _correct(self, module: _BatchNorm, args: Any, output: torch.Tensor) -> None:
        before, self._before = self._before, None
        if before is None or module.running_var is None:
            return
        count = output.numel() // output.shape[1]
        kept: Any = 1 - (1 / module.num_batches_tracked.float() if module.momentum is None else module.momentum)  # type: ignore[union-attr]
        with torch.no_grad():
            moved = module.running_var.detach()
            # .data: BatchNorm's backward checks the version of its buffers, and torch's own update leaves it alone too.
            module.running_var.data.copy_(moved + (moved - kept * before) / (count - 1))
