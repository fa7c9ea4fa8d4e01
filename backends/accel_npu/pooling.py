"""Max pooling on an NPU keeps a mask of its own for backward, where torch's kernels keep indices."""

from __future__ import annotations

import math
from typing import Any

import torch


def mask(func: Any, args: tuple[Any, ...], out: Any) -> tuple[torch.Tensor, int] | None:
    """The second result of a max pooling and the bytes of the mask that stands in its place; None for other operations.

    MaxPoolWithMask as torch_npu 2.13 allocates for it: for each position in the kernel one bit an output in blocks of
    16, each padded to 32 bytes, and one block more.
    """
    if func is not torch.ops.aten.max_pool2d_with_indices.default:
        return None
    images, indices = out
    window = args[1] if len(args[1]) == 2 else (args[1][0], args[1][0])
    rows = math.prod(images.shape[:-2]) * math.prod(window)
    return indices, rows * (math.ceil(math.prod(images.shape[-2:]) / 16) + 1) * 32
