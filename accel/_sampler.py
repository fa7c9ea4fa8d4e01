"""`ShardedSampler`: one rank's share of a map-style dataset - no duplicates, lengths that differ by at most one
(T19).
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from accel.errors import ArgumentError


class ShardedSampler(Sampler[int]):
    """Yields indices `rank, rank + world_size, ...` of an order that every rank computes alike from (seed, epoch)."""

    def __init__(self, dataset: Any, *, rank: int, world_size: int, shuffle: bool, seed: int) -> None:
        if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            raise ArgumentError(
                f"sampler(dataset={type(dataset).__name__}): expected a map-style dataset with __len__ and "
                "__getitem__; an iterable dataset shards itself by rank"
            )
        self.rank, self.world_size = rank, world_size
        self._length = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; `Session.batches(epoch=...)` calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if not self._shuffle:
            return iter(range(self.rank, self._length, self.world_size))
        generator = torch.Generator()
        generator.manual_seed((self._seed * 1_000_003 + self.epoch) % 2**63)
        order = torch.randperm(self._length, generator=generator)
        return iter(order[self.rank :: self.world_size].tolist())

    def __len__(self) -> int:
        return max(0, -(-(self._length - self.rank) // self.world_size))
