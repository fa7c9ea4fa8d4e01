"""`Peers`: what this rank knows of the others, and what it tells them, on the store that all share.

Who is silent, who has left, what each was last in, who comes to a meeting, and the news that a rank gives up. The
watcher (`accel._watch`) gathers the signs of life in a thread of its own; these are the questions that the rank's own
thread asks. What is exchanged and agreed on with the others belongs to `accel.control`.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.distributed_c10d import Store

from accel._flight import Recorder
from accel._wait import poll, translated
from accel._watch import ABORTED, Watcher
from accel._words import named, told
from accel.errors import CollectiveError, CollectiveTimeout

PARTING = 5.0  # seconds that a rank which leaves waits for the store, or for the others to leave it
_ROLL_CALL = 5.0  # seconds that ranks whose fabric failed may lie apart


class Peers:
    """The other ranks of a job. `store` and `watcher`: None where there are none."""

    def __init__(self, store: Store | None, rank: int, world_size: int, timeout: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout  # seconds that a rank may be silent, or late
        self.recorder = Recorder(rank, world_size)
        self.watcher: Watcher | None = None
        self._store = store

    @property
    def store(self) -> Store:
        """The store that all ranks share. Raises `CollectiveError` where there is none (world size 1, or closed)."""
        if self._store is None:
            raise CollectiveError(f"rank {self.rank} has no store: world size {self.world_size}, or already closed")
        return self._store

    def abort(self, reason: str) -> None:
        """Tell all ranks that this one gives up: whatever they wait for in accel raises `CollectiveError` with
        `reason`.
        """
        if self._store is not None and not self.unreachable():
            store, news = self._store, json.dumps({"rank": self.rank, "reason": reason})
            briefly(lambda: store.compare_set(ABORTED, "", news))
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

    def soon_gone(self, ranks: Sequence[int], limit: float = _ROLL_CALL) -> list[int]:
        """Those of `ranks` that have closed their session or ended. For an error that comes at once: wait up to `limit`
        seconds until one has said so, or ranks miss signs of life.
        """
        watcher = self.watcher
        if watcher is None:
            return []
        poll(lambda: bool(watcher.left(ranks) or watcher.silent()), limit, lambda: None)
        return watcher.left(ranks)

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

    def unreachable(self) -> bool:
        """Whether a call of the store would fail, or never return."""
        return self.watcher is not None and self.watcher.unreachable


def briefly(call: Callable[[], object]) -> None:
    """Run a call of the store beside this thread, and leave it where it does not return: the process that holds the
    store may be frozen, or gone.
    """

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the store has ended with its process: nothing is left to tell
            call()

    thread = threading.Thread(target=run, name="accel-parting", daemon=True)
    thread.start()
    thread.join(PARTING + 1.0)
