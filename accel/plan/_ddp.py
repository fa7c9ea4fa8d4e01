"""`Buckets`: the gradients' buckets of DistributedDataParallel, on the fake tensors of a plan.

As `Session.prepare` sets DDP up between ranks: gradients become views of flat buckets, which are there before the step
and stay after it; each gradient is copied into its bucket and its own storage goes. In the micro-batches of a window
before the last gradients lie beside the buckets. The layout is that of torch's reducer (2.9 to 2.13) after its first
step, taken to be filled in the order in which backward reaches the parameters: the reverse of their registration.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from accel._buckets import BUCKET


class Buckets:
    """Buckets for `parameters`; `reduces` says whether the backward that follows ends a window."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.reduces = False
        self.flat: list[torch.Tensor] = []
        self._views: dict[int, torch.Tensor] = {}
        for bucket in _filled(reversed(list(parameters))):
            flat = bucket[0].new_empty(sum(parameter.numel() for parameter in bucket))
            self.flat.append(flat)
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                self._views[id(parameter)] = part.view(parameter.shape)
                parameter.register_post_accumulate_grad_hook(self._copied)

    def _copied(self, parameter: torch.Tensor) -> None:
        if self.reduces and parameter.grad is not None:
            view = self._views[id(parameter)]
            view.copy_(parameter.grad)
            parameter.grad = view


def _filled(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters of one dtype go into a bucket until it has `BUCKET` bytes, as torch's reducer fills its own."""
    full: list[list[nn.Parameter]] = []
    open_: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        bucket = open_.setdefault(parameter.dtype, [])
        bucket.append(parameter)
        if sum(one.numel() * one.element_size() for one in bucket) >= BUCKET:
            full.append(open_.pop(parameter.dtype))
    return [*full, *open_.values()]
