"""How many tensors become few launches: the bucket planner that coalesced collectives and gradient reduction share.

A bucket is sent as one flat tensor. Small tensors share one, since a launch costs more than their bytes; a tensor that
fills a bucket goes alone, without a copy; and no bucket is so large that its copy shows in the memory figures. Lazy
fabrics fuse launches in their graph, and take lists instead.
"""

from __future__ import annotations

from collections.abc import Sequence

BUCKET = 25 * 2**20  # bytes; what DistributedDataParallel takes by default (bucket_cap_mb, torch 2.9 to 2.13)


def buckets(sizes: Sequence[int], limit: int = BUCKET) -> list[list[int]]:
    """Indices of `sizes` (bytes) in buckets of up to `limit`, in order; what is larger by itself is alone."""
    found: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if size > room or not found:
            found.append([index])
            room = limit - size
        else:
            found[-1].append(index)
            room -= size
    return found
