"""Three ways to sum a tensor over ranks, each written over `send` and `recv` of the real transport, and their models.

For comparison on links of limited bandwidth: `ring` (scatter-reduce, then all-gather), `tree` (binomial, up and down)
and `server` (rank 0 receives from all, adds, and sends to all, as a parameter server on one of the hosts does). A
training job uses `Collective.all_reduce`, which leaves the choice to the fabric. The models are the usual alpha-beta
ones for hosts on a switch whose links carry both directions at once (Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH", 2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from accel.collective import Collective


def ring(c: Collective, t: torch.Tensor) -> None:
    """Sum `t`, contiguous, in place: n-1 steps of adding and n-1 of copying, 1/n of the tensor in each."""
    n, flat = c.world_size, t.view(-1)
    parts = list(flat.tensor_split(n))
    room = torch.empty_like(parts[0])  # the largest
    for step in range(2 * (n - 1)):
        mine, theirs = parts[(c.rank - step) % n], parts[(c.rank - step - 1) % n]
        sent = c.send(mine, (c.rank + 1) % n, async_op=True)
        got = room[: theirs.numel()]
        c.recv(got, (c.rank - 1) % n)
        if step < n - 1:
            theirs.add_(got)
        else:
            theirs.copy_(got)
        sent.wait()


def tree(c: Collective, t: torch.Tensor) -> None:
    """Sum `t` in place: pairs, pairs of pairs and so on up to rank 0, then back the same way."""
    room = torch.empty_like(t)
    spans = [1 << level for level in range(math.ceil(math.log2(c.world_size)))]
    for span in spans:
        if c.rank % (2 * span) == span:
            c.send(t, c.rank - span)
        elif c.rank % (2 * span) == 0 and c.rank + span < c.world_size:
            c.recv(room, c.rank + span)
            t.add_(room)
    for span in reversed(spans):
        if c.rank % (2 * span) == span:
            c.recv(t, c.rank - span)
        elif c.rank % (2 * span) == 0 and c.rank + span < c.world_size:
            c.send(t, c.rank + span)


def server(c: Collective, t: torch.Tensor) -> None:
    """Sum `t` in place: everybody sends all of it to rank 0 at once, which adds, and sends the sum to everybody."""
    if c.rank:
        c.send(t, 0)
        c.recv(t, 0)
        return
    rooms = [torch.empty_like(t) for _ in range(1, c.world_size)]
    works = [c.recv(room, rank, async_op=True) for rank, room in enumerate(rooms, 1)]
    for work, room in zip(works, rooms, strict=True):
        work.wait()
        t.add_(room)
    for work in [c.send(t, rank, async_op=True) for rank in range(1, c.world_size)]:
        work.wait()


ALGORITHMS: dict[str, Callable[[Collective, torch.Tensor], None]] = {"ring": ring, "tree": tree, "server": server}


def modelled(algorithm: str, ranks: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds of one sum of `size` bytes over `ranks`, one on each host. `latency`: seconds of a message; `bandwidth`:
    bytes/s of a host's link, each way.
    """
    if ranks < 2:
        return 0.0
    if algorithm == "ring":
        return 2 * (ranks - 1) * (latency + size / ranks / bandwidth)
    if algorithm == "tree":
        return 2 * math.ceil(math.log2(ranks)) * (latency + size / bandwidth)
    return 2 * (latency + (ranks - 1) * size / bandwidth)  # the server's own link carries everybody's tensor
