"""`ControlPlane`: what must be true on every vendor and no vendor does well.

Barriers with a time limit that name the missing ranks, objects without pickle, small agreements; who is silent or gone,
and the news that a rank has given up, come with it from `accel._peers`. It runs on a store and gloo groups of its own,
on CPU, beside whatever fabric carries the tensors, and in an order of its own. With world size 1 it needs no store and
sends nothing.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import torch
from torch.distributed.distributed_c10d import Store

from accel import _codec
from accel._agreement import Agreement, Gloo
from accel._peers import PARTING, Peers, briefly
from accel._signature import Signature
from accel._timeout import seconds
from accel._wait import poll
from accel._watch import ABORTED, Watcher
from accel._words import named
from accel.errors import ArgumentError, CollectiveError, CollectiveTimeout

__all__ = ["MAX_BYTES", "Agreement", "ControlPlane"]

MAX_BYTES = 256 * 2**20  # of one encoded object; larger things belong in files or tensors


class ControlPlane(Peers):
    """The CPU-side agreement between all ranks. `store`: from `accel._store.connect`; None when `world_size` is 1.

    `timeout` in seconds (or a timedelta) holds for every call that is not given its own. Raises `CollectiveTimeout`,
    naming them, when ranks never came. All calls but `abort` belong to one thread.
    """

    def __init__(
        self,
        store: Store | None,
        rank: int,
        world_size: int,
        timeout: float | timedelta = 600.0,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if store is None and world_size > 1:
            raise ArgumentError(f"a control plane of world size {world_size} needs a store; got None")
        super().__init__(store, rank, world_size, seconds(timeout))
        self.max_bytes = max_bytes
        self._agreements = 0
        self._group: Gloo | None = None
        if store is not None and world_size > 1:
            now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
            self.recorder.run = store.compare_set("run", "", f"{now}-{secrets.token_hex(4)}").decode()
            everybody = tuple(range(world_size))
            self.recorder.groups.update({"barrier": everybody, "objects": everybody})
            self.watcher = Watcher(store, rank, world_size, self.timeout, self.recorder)
            try:
                self._arrive()
                self._group = Gloo(self, "objects")
            except BaseException:
                self.watcher.stop()
                raise
            self.watcher.start()

    def barrier(self, timeout: float | timedelta | None = None) -> None:
        """Return when every rank has come. Raises `CollectiveTimeout` naming those that did not within `timeout`
        seconds.
        """
        limit = self._limit(timeout)
        if self.world_size == 1:
            return
        with self._entry("barrier", "barrier") as turn:
            missing = self.meet("barrier", turn, limit)
            if missing:
                text = (
                    f"barrier {turn} timed out after {limit:g} s on rank {self.rank}: {named(missing)} did not come"
                    f"{self.last_seen(missing)}"
                )
                raise CollectiveTimeout(text + self.hung(text))

    def broadcast_object(self, obj: Any, src: int = 0, timeout: float | timedelta | None = None) -> Any:
        """`obj` of rank `src` on every rank: plain data and CPU tensors (see `accel._codec`); `obj` of the others is
        ignored.

        Raises `EncodingError` on `src` and `CollectiveError` elsewhere for an object that cannot be sent,
        `ArgumentError` on all ranks for one above `max_bytes`.
        """
        limit = self._limit(timeout)
        if isinstance(src, bool) or not isinstance(src, int) or not 0 <= src < self.world_size:
            raise ArgumentError(f"src is {src!r}; expected a rank from 0 to {self.world_size - 1}")
        return self._exchange(obj, [src], "broadcast_object", limit)[0]

    def all_gather_object(self, obj: Any, timeout: float | timedelta | None = None) -> list[Any]:
        """The objects of all ranks, by rank; their sizes may differ. Raises as `broadcast_object` does."""
        return self._exchange(obj, range(self.world_size), "all_gather_object", self._limit(timeout))

    def any(self, flag: bool, timeout: float | timedelta | None = None) -> bool:
        """Whether `flag` is true on any rank."""
        return bool(-self.min(-int(bool(flag)), timeout))

    def min(self, value: int, timeout: float | timedelta | None = None) -> int:
        """The smallest `value` (64-bit) of all ranks."""
        limit = self._limit(timeout)
        if self._group is None:
            return value
        with self._entry("objects", "min") as turn:
            return self._group.min(value, limit, turn)

    def loader_agreement(self) -> Agreement:
        """A channel of its own, to be used by one other thread; made by all ranks in the same order."""
        self._agreements += 1
        return Agreement(self, None if self.world_size == 1 else Gloo(self, f"agreement/{self._agreements}"))

    def close(self) -> None:
        """Leave the plane. Rank 0 waits a moment for the others, since its process may hold the store."""
        store, self._store = self._store, None
        if self.watcher is not None:
            self.watcher.stop()
        if self._group is not None:
            self._group.close()
            self._group = None
        if store is None or self.unreachable():
            return
        briefly(lambda: self._part(store))

    def _part(self, store: Store) -> None:
        gone = store.add("closed", 1)
        if self.rank == 0 and gone < self.world_size and not store.check([ABORTED]):
            poll(lambda: store.add("closed", 0) == self.world_size, PARTING, lambda: None)

    def _arrive(self) -> None:
        missing = self.meet("arrival", 1, self.timeout)
        if missing:
            raise CollectiveTimeout(
                f"rank {self.rank} waited {self.timeout:g} s for its peers: {named(missing)} of {self.world_size} "
                f"never came. Start all ranks (`accel launch --nproc {self.world_size} script.py`), or run without "
                "RANK and WORLD_SIZE for a single process"
            )

    def _exchange(self, obj: Any, sources: Sequence[int], what: str, limit: float) -> list[Any]:
        """Each source's object on every rank: sizes first, so that all ranks refuse alike, then one broadcast a
        source.
        """
        data, refusal = b"", None
        if self.rank in sources:
            try:
                data = _codec.encode(obj)
            except Exception as error:
                refusal = error
        with self._entry("objects", what) as turn:
            return self._moved(data, refusal, sources, what, limit, turn)

    def _moved(
        self, data: bytes, refusal: Exception | None, sources: Sequence[int], what: str, limit: float, turn: int
    ) -> list[Any]:
        size = -1 if refusal else len(data)
        sizes = [size] if self._group is None else self._group.all_gather_int(size, limit, turn)
        if refusal is not None:
            raise refusal
        for source in sources:
            if sizes[source] < 0:
                raise CollectiveError(f"{what}: rank {source} could not encode its object; its own error says why")
            if sizes[source] > self.max_bytes:
                raise ArgumentError(
                    f"{what}: the object of rank {source} takes {sizes[source]} bytes, above the limit of "
                    f"{self.max_bytes}; use tensors or a checkpoint for data of that size"
                )
        if self._group is None:
            return [_codec.decode(data)]
        buffers = [torch.empty(sizes[source], dtype=torch.uint8) for source in sources]
        if data:
            buffers[list(sources).index(self.rank)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._group.broadcast(buffers, sources, what, limit, turn)
        return [_codec.decode(buffer.numpy().tobytes()) for buffer in buffers]

    def _limit(self, timeout: float | timedelta | None) -> float:
        return self.timeout if timeout is None else seconds(timeout)

    @contextlib.contextmanager
    def _entry(self, group: str, kind: str) -> Iterator[int]:
        """An entry of the flight recorder round one call that all ranks make; gives the call's number."""
        if self.watcher is None:
            yield 0
            return
        turn = self.watcher.turns[group] = self.watcher.turns.get(group, 0) + 1
        entry = self.recorder.open(group, turn, Signature(kind))
        try:
            yield turn
        except BaseException as error:
            entry.close(type(error).__name__)
            raise
        entry.close()
