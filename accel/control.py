"""`ControlPlane`: what must be true on every vendor and no vendor does well.

Barriers with a time limit that name the missing ranks, objects without pickle, small agreements, and the news that a
rank has given up. It runs on a store and gloo groups of its own, on CPU, beside whatever fabric carries the tensors,
and in an order of its own. With world size 1 it needs no store and sends nothing.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import torch
from torch.distributed.distributed_c10d import (
    AllreduceOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    ReduceOp,
    Store,
)

from accel import _codec
from accel._c10d import C10dHandle, keep_forever
from accel._flight import Recorder
from accel._signature import Signature
from accel._timeout import seconds
from accel._wait import poll, translated, wait_sliced
from accel._watch import ABORTED, Watcher
from accel._words import named, told
from accel.errors import ArgumentError, CollectiveError, CollectiveTimeout

MAX_BYTES = 256 * 2**20  # of one encoded object; larger things belong in files or tensors
_ROLL_CALL = 5.0  # seconds that ranks whose fabric failed may lie apart
_PARTING = 5.0  # seconds that rank 0, which may hold the store, waits for the others to leave it


class ControlPlane:
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
        self.rank = rank
        self.world_size = world_size
        self.timeout = seconds(timeout)
        self.max_bytes = max_bytes
        self.recorder = Recorder(rank, world_size)
        self._store = store
        self._agreements = 0
        self._group: _Gloo | None = None
        self.watcher: Watcher | None = None
        if store is not None and world_size > 1:
            now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
            self.recorder.run = store.compare_set("run", "", f"{now}-{secrets.token_hex(4)}").decode()
            everybody = tuple(range(world_size))
            self.recorder.groups.update({"barrier": everybody, "objects": everybody})
            self.watcher = Watcher(store, rank, world_size, self.timeout, self.recorder)
            try:
                self._arrive()
                self._group = _Gloo(self, "objects")
            except BaseException:
                self.watcher.stop()
                raise
            self.watcher.start()

    @property
    def store(self) -> Store:
        """The store that all ranks share. Raises `CollectiveError` where there is none (world size 1, or closed)."""
        if self._store is None:
            raise CollectiveError(f"rank {self.rank} has no store: world size {self.world_size}, or already closed")
        return self._store

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
        return Agreement(self, None if self.world_size == 1 else _Gloo(self, f"agreement/{self._agreements}"))

    def abort(self, reason: str) -> None:
        """Tell all ranks that this one gives up: whatever they wait for in accel raises `CollectiveError` with
        `reason`.
        """
        if self._store is not None and not self._unreachable():
            store, news = self._store, json.dumps({"rank": self.rank, "reason": reason})
            _briefly(lambda: store.compare_set(ABORTED, "", news))
        if self.watcher is not None:
            self.watcher.dump(reason)

    def check_abort(self) -> None:
        """Raise `CollectiveError` if a rank has given up, `CollectiveTimeout` if one is silent; called between the
        slices of every wait. Asks nobody: the watcher has looked a moment ago.
        """
        if self.watcher is not None:
            self.watcher.check()

    def last_words(self) -> None:
        """As `check_abort`, but look anew: for errors of a fabric, which tell no more than that a peer has gone."""
        self.refresh()
        self.check_abort()

    def refresh(self) -> None:
        """Let the watcher look anew, and wait for that a moment."""
        if self.watcher is not None:
            self.watcher.refresh()

    def check_left(self, ranks: Sequence[int], group: str, number: int, limit: float) -> None:
        """Raise `CollectiveTimeout` now, before `limit` seconds are over, if one of `ranks` has closed its session and
        had not come to `number` of `group`: it never will.
        """
        if self.watcher is None:
            return
        gone = [rank for rank in self.watcher.left(ranks) if self.position(rank, group) < number]
        if gone:
            text = (
                f"{named(gone)} closed its session or ended before number {number} of group {group!r}, in which rank "
                f"{self.rank} would wait {limit:.3g} s for it: let every rank make the same calls"
            )
            raise CollectiveTimeout(text + self.last_seen(gone) + self.hung(text))

    def silent(self) -> list[int]:
        """Ranks that have given no sign of life for a while, though perhaps not yet for the whole time limit."""
        return [] if self.watcher is None else self.watcher.silent()

    def soon_silent(self, limit: float = _ROLL_CALL) -> list[int]:
        """As `silent`, for an error that comes at once: wait up to `limit` seconds for ranks to miss signs of life."""
        poll(lambda: bool(self.silent()), limit if self.watcher else 0.0, lambda: None)
        return self.silent()

    def position(self, rank: int, group: str) -> int:
        """The number of `group` that `rank` last told that it had come to; 0 where this rank does not know."""
        state = {} if self.watcher is None else self.watcher.state(rank)
        turn: int = state.get("turns", {}).get(group) or state.get("groups", {}).get(group, [0])[0]
        return turn

    def last_seen(self, ranks: Sequence[int], shown: int = 8) -> str:
        """What each of `ranks` was last in, for the end of an error."""
        if self.watcher is None or not ranks:
            return ""
        self.watcher.refresh()
        states = {rank: self.watcher.state(rank) for rank in ranks[:shown]}
        words = [f"rank {rank} was last seen in {told(state.get('entry'))}" for rank, state in states.items() if state]
        return f" ({'; '.join(words)})" if words else ""

    def hung(self, reason: str) -> str:
        """Write the flight records of all ranks; where this one's lies, for the end of an error."""
        if self.watcher is None:
            return ""
        with contextlib.suppress(RuntimeError):
            self.watcher.post("dump", reason=f"rank {self.rank}: {reason}")
        path = self.watcher.dump(reason)
        return f". Flight record: {path} (read all ranks' with `accel doctor hang`)"

    def post_once(self, key: str, kind: str, **fields: Any) -> None:
        """A message to the watchers of all ranks, unless a rank has sent the one named `key` already."""
        if self.watcher is not None and self.store.add(f"once/{key}", 1) == 1:
            self.watcher.post(kind, **fields)

    def no_sign_of(self, limit: float = _ROLL_CALL) -> list[int]:
        """Ranks that do not answer within `limit` seconds, for the error of a fabric that does not say who is missing.

        A rank answers by calling this too, as every rank does whose fabric has failed.
        """
        if self._store is None:
            return []
        store = self._store
        try:
            store.set(f"roll-call/{self.rank}", "")
            everybody = [f"roll-call/{rank}" for rank in range(self.world_size)]
            if poll(lambda: store.check(everybody), limit, lambda: None):
                return []
            return [rank for rank, key in enumerate(everybody) if not store.check([key])]
        except RuntimeError:  # the store has ended with its process
            return [0]

    def meet(self, name: str, turn: int, limit: float) -> list[int]:
        """Meet all ranks at the place `name` for the `turn`th time; return those that did not come within `limit`
        seconds.
        """
        store, place, before = self.store, f"{name}/{turn}", f"{name}/{turn - 1}"
        with translated(lambda: f"{place} on rank {self.rank}", self.last_words):
            store.set(f"{place}/{self.rank}", "")
            if store.add(place, 1) == self.world_size:
                store.set(f"{place}/all", "")
                for key in (
                    [before, f"{before}/all", *(f"{before}/{rank}" for rank in range(self.world_size))]
                    if turn > 1
                    else ()
                ):
                    store.delete_key(key)  # all have left the place before

            def between() -> None:
                self.check_abort()
                self.check_left(range(self.world_size), name, turn, limit)

            if poll(lambda: store.check([f"{place}/all"]), limit, between):
                return []
            return [rank for rank in range(self.world_size) if not store.check([f"{place}/{rank}"])]

    def close(self) -> None:
        """Leave the plane. Rank 0 waits a moment for the others, since its process may hold the store."""
        store, self._store = self._store, None
        if self.watcher is not None:
            self.watcher.stop()
        if self._group is not None:
            self._group.close()
            self._group = None
        if store is None or self._unreachable():
            return
        _briefly(lambda: self._part(store))

    def _part(self, store: Store) -> None:
        gone = store.add("closed", 1)
        if self.rank == 0 and gone < self.world_size and not store.check([ABORTED]):
            poll(lambda: store.add("closed", 0) == self.world_size, _PARTING, lambda: None)

    def _unreachable(self) -> bool:
        """Whether a call of the store would fail, or never return."""
        return self.watcher is not None and self.watcher.unreachable

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


def _briefly(call: Callable[[], object]) -> None:
    """Run a call of the store beside this thread, and leave it where it does not return: the process that holds the
    store may be frozen, or gone.
    """

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the store has ended with its process: nothing is left to tell
            call()

    thread = threading.Thread(target=run, name="accel-parting", daemon=True)
    thread.start()
    thread.join(_PARTING + 1.0)


class Agreement:
    """Agreement on small numbers for one background thread, independent of everything else in flight."""

    def __init__(self, plane: ControlPlane, group: _Gloo | None) -> None:
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


class _Gloo:
    """A gloo process group of its own, outside torch.distributed's registry, with waits that notice an abort."""

    def __init__(self, plane: ControlPlane, name: str) -> None:
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
