"""`synthetic`: made-up images for measurements that must not depend on a disk."""

from __future__ import annotations

import numpy as np
import torch

from accel.data._base import ImageDataset, check_at_least_one
from accel.errors import ArgumentError


def synthetic(size: int = 224, num_classes: int = 1000, length: int = 1280, seed: int = 0) -> ImageDataset:
    """`length` images of standard normal noise with random labels; item i depends on `seed` and i only.

    Raises `ArgumentError` for a `size`, `num_classes` or `length` below 1 and for a negative `seed`.
    """
    check_at_least_one(size=size, num_classes=num_classes, length=length)
    if seed < 0:
        raise ArgumentError(f"seed is {seed}; expected a whole number of at least 0")
    return _Synthetic(size, num_classes, length, seed)


class _Synthetic(ImageDataset):
    """Drawn with numpy: torch's vectorised normal draws differ in the last bits between instruction sets."""

    name = "synthetic"

    def __init__(self, size: int, num_classes: int, length: int, seed: int) -> None:
        self.size, self.num_classes, self._length, self._seed = size, num_classes, length, seed

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self._length:
            raise IndexError(f"index {index} is outside the {self._length} synthetic images")
        random = np.random.default_rng((self._seed, index))
        label = int(random.integers(self.num_classes))
        return torch.from_numpy(random.standard_normal((3, self.size, self.size), dtype=np.float32)), label
