"""`Gloo`: a process group of the control plane, and `Agreement` on small numbers over one of its own.

Outside torch.distributed's registry, so that no script meets them, with waits that notice an abort and errors that name
the ranks that did not take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    ReduceOp,
)

from accel._c10d import C10dHandle, keep_forever
from accel._peers import Peers
from accel._timeout import seconds
from accel._wait import translated, wait_sliced
from accel._words import named
from accel.errors import CollectiveTimeout


class Agreement:
    """Agreement on small numbers for one background thread, independent of everything else in flight."""

    def __init__(self, plane: Peers, group: Gloo | None) -> None:
        self._plane = plane
        self._group = group

    def min(self, value: int, timeout: float | timedelta | None = None) -> int:
        """The smallest `value` of all ranks. Raises `CollectiveTimeout` when a rank does not take part in time."""
        limit = self._plane.timeout if timeout is None else seconds(timeout)
        return value if self._group is None else self._group.min(value, limit, 0)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


class Gloo:
    """One process group of all ranks, for one thread. `name`: alike on all ranks, and of this group only."""

    def __init__(self, plane: Peers, name: str) -> None:
        self._plane = plane
        self._name = name
        self._stuck = False
        store = PrefixStore(f"gloo/{name}", plane.store)
        with translated(lambda: f"connecting the control plane ({name}) on rank {plane.rank}"):
            self._pg: Any = ProcessGroupGloo(store, plane.rank, plane.world_size, timedelta(seconds=plane.timeout))

    def min(self, value: int, limit: float, turn: int) -> int:
        box = torch.tensor([value], dtype=torch.int64)
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MIN)
        self._run(lambda: [self._pg.allreduce([box], options)], "min", limit, turn)
        return int(box.item())

    def all_gather_int(self, value: int, limit: float, turn: int) -> list[int]:
        boxes = [torch.empty(1, dtype=torch.int64) for _ in range(self._plane.world_size)]
        mine = torch.tensor([value], dtype=torch.int64)
        self._run(lambda: [self._pg.allgather([boxes], [mine])], "exchange of sizes", limit, turn)
        return [int(box.item()) for box in boxes]

    def broadcast(
        self, buffers: Sequence[torch.Tensor], sources: Sequence[int], what: str, limit: float, turn: int
    ) -> None:
        def start() -> list[Any]:
            works = []
            for buffer, source in zip(buffers, sources, strict=True):
                options = BroadcastOptions()
                options.rootRank = source
                works.append(self._pg.broadcast([buffer], options))
            return works

        self._run(start, what, limit, turn)

    def close(self) -> None:
        if self._stuck:
            keep_forever(self._pg)  # its destructor would wait for the operation that never ends

    def _run(self, start: Any, what: str, limit: float, turn: int) -> None:
        """`turn`: the call's number among those of all ranks; 0 where only this group counts."""
        plane = self._plane
        label = f"{what} of the control plane on rank {plane.rank} of {plane.world_size}"
        self._stuck = True
        with translated(lambda: label, plane.last_words):
            for work in start():
                if not wait_sliced(C10dHandle(work, blocks=True), limit, plane.check_abort):
                    text = f"{label} timed out after {limit:g} s: {self._late(turn)}"
                    raise CollectiveTimeout(text + plane.hung(text))
        self._stuck = False

    def _late(self, turn: int) -> str:
        plane = self._plane
        ranks = [rank for rank in range(plane.world_size) if rank != plane.rank]
        late = [rank for rank in ranks if 0 < turn > plane.position(rank, "objects")] if plane.watcher else []
        return f"{named(late)} did not take part{plane.last_seen(late)}" if late else "a rank did not take part"
