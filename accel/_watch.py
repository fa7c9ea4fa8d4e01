"""`Watcher`: the thread of each rank that keeps an eye on the others, beside whatever blocks the rank's own thread.

A few times a second it says in the store that this rank lives and what it is in, reads the same of others, and reads
the bulletin, a list of short messages to all ranks: questions of the checks, mismatches, requests to write the flight
record. What it learns it keeps as `news`, which every wait of accel looks at. A second thread, the guard, talks to
nobody: it writes the flight record on SIGUSR1, notices when the store itself no longer answers, and where news cannot
reach a thread that is blocked in a vendor's call, it prints them and ends the process.

A rank counts as silent by the time that this rank has watched it, so one that was itself stopped, or whose process
was held up as a whole, blames nobody when it goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import Store

from accel._flight import Recorder, entry_state
from accel._guard import Guard
from accel._order import Orders
from accel._words import told
from accel.errors import CollectiveError, CollectiveTimeout

if TYPE_CHECKING:
    from accel._checks import Checker

log = logging.getLogger("accel")

ABORTED = "aborted"
NEIGHBOURS = 16  # ranks that each rank watches, the next ones; others learn of their silence from the bulletin
_PERIOD = 0.25  # seconds between two looks, up to 64 ranks; the store serves them all, so more ranks look less often
_RANKS_A_SECOND = 256  # the share of each rank in the store's time
_WARN = 30.0  # longest silence in seconds that passes without a warning
_MISSED = 1.0  # seconds without an answer that are more than a busy machine
_PATIENCE = 8  # looks for a message of the bulletin that was announced and has not come


class Peer:
    """Another rank, as its last sign of life shows it."""

    def __init__(self) -> None:
        self.sign = b""
        self.quiet = 0.0  # seconds that we have watched without a new sign
        self.state: dict[str, Any] = {}
        self.warned = False

    def see(self, sign: bytes, elapsed: float) -> None:
        if sign == self.sign:
            self.quiet += elapsed
            return
        self.sign, self.quiet, self.warned = sign, 0.0, False
        self.state = json.loads(sign)

    @property
    def left(self) -> bool:
        return bool(self.state.get("left"))


class Watcher:
    """The watch of one rank over one connection. `store` is used through a connection of its own."""

    def __init__(self, store: Store, rank: int, world_size: int, timeout: float, recorder: Recorder) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.recorder = recorder
        self.checkers: dict[str, Checker] = {}
        self.turns: dict[str, int] = {}  # how often this rank came to each place of the control plane
        self.streams = False  # the fabric orders streams: the host may hang in any wait for the device
        self.fabric: Callable[[], Any] = lambda: None  # the fabric's own flight record
        self.period = min(max(_PERIOD, world_size / _RANKS_A_SECOND), timeout / 4)
        self.news: CollectiveError | None = None
        self.heard = False  # this rank's own thread has raised the news
        own: Any = store  # torch's stub does not name clone()
        self._store = own.clone()
        self._owner = threading.current_thread()
        self._peers = {(rank + i) % world_size: Peer() for i in range(1, min(world_size - 1, NEIGHBOURS) + 1)}
        self._beats = 0
        self._read = 0  # messages of the bulletin
        self._patience = _PATIENCE
        self._questions: list[tuple[str, int]] = []
        self._orders = Orders(self._store, self.checkers, self.post)
        self.looked = 0  # looks that are over
        self.looking = False
        self.no_answer = 0.0  # seconds that the look under way has waited for the store
        self.unreachable = False  # the store has ended, or the process that holds it is frozen
        self.stopping = threading.Event()
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._guard = Guard(self)
        self._beat(left=False)
        self._threads = [
            threading.Thread(target=run, name=f"accel-{name}-{rank}", daemon=True)
            for name, run in (("watch", self._watch), ("guard", self._guard.run))
        ]

    def start(self) -> None:
        """Begin to watch; every rank has said that it lives."""
        atexit.register(self.stop)
        for thread in self._threads:
            thread.start()

    @property
    def watching(self) -> bool:
        """Whether the watching thread runs."""
        return self._threads[0].is_alive()

    def stop(self) -> None:
        """Say that this rank leaves, and end the threads."""
        atexit.unregister(self.stop)
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._wake.set()
        if self._threads[0].ident is not None:
            self._threads[0].join(self.period + 1.0)
        if not self._threads[0].is_alive():
            with contextlib.suppress(RuntimeError):
                self._beat(left=True)
        self._guard.close()

    # -- of the rank's own thread ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the news, where there are any."""
        news = self.news
        if news is not None:
            self.heard = True
            raise type(news)(str(news)) from news.__cause__

    def refresh(self, limit: float = 2.0) -> None:
        """Wait until the watcher has looked again, at most `limit` seconds."""
        if not self._threads[0].is_alive() or self.no_answer > _MISSED:
            return
        with self._changed:
            after = self.looked + (2 if self.looking else 1)  # one that is under way may have read before
            self._wake.set()
            self._changed.wait_for(lambda: self.looked >= after or self.stopping.is_set(), limit)

    def silent(self) -> list[int]:
        """Ranks that have missed several signs of life by now, though not yet for the whole time limit."""
        if self.no_answer > _MISSED and _store_of_rank_0() and self.rank != 0:
            return [0]  # and of the others nothing can be known
        late = max(4 * self.period, _MISSED)
        return [rank for rank, peer in self._peers.items() if peer.quiet > late and not peer.left]

    def left(self, ranks: Iterable[int]) -> list[int]:
        """Those of `ranks` that have closed their session or ended."""
        return [rank for rank in ranks if rank in self._peers and self._peers[rank].left]

    def state(self, rank: int) -> dict[str, Any]:
        """What `rank` last said of itself; empty where this rank does not watch it."""
        return self._peers[rank].state if rank in self._peers else {}

    def post(self, kind: str, **fields: Any) -> None:
        """A message to the watchers of all ranks."""
        if self.unreachable or self.no_answer > _MISSED:
            return
        number = self._store.add("bulletin", 1)
        self._store.set(f"bulletin/{number}", json.dumps({"kind": kind, "from": self.rank, **fields}))

    def dump(self, reason: str) -> str:
        """Write this rank's flight record; its path, or why there is none."""
        try:
            fabric = self.fabric()
        except RuntimeError as error:
            fabric = {"unreadable": str(error)}
        peers = {rank: {**peer.state, "quiet": round(peer.quiet, 2)} for rank, peer in self._peers.items()}
        try:
            return str(self.recorder.dump(reason, peers, fabric))
        except OSError as error:
            log.warning("rank %d: the flight record could not be written: %s", self.rank, error)
            return f"none: {error}"

    # -- of the watching thread ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        last = time.monotonic()
        while not self.stopping.is_set():
            self.looking = True
            now = time.monotonic()
            try:
                self._look(min(now - last, 2 * self.period))
            except RuntimeError as error:
                if not self.stopping.is_set():
                    self._lose(error)
                return
            finally:
                with self._changed:
                    self.looking = False
                    self.looked += 1
                    self._changed.notify_all()
            last = now
            if not self._owner.is_alive():
                self.stopping.set()
                with contextlib.suppress(RuntimeError):
                    self._beat(left=True)
                return
            self._wake.wait(self.period)
            self._wake.clear()

    def _look(self, elapsed: float) -> None:
        self._beat(left=False)
        ranks = list(self._peers)
        for rank, sign in zip(ranks, self._store.multi_get([f"beat/{rank}" for rank in ranks]), strict=True):
            self._peers[rank].see(sign, elapsed)
        self._read_bulletin()
        if self.news is None and self._store.check([ABORTED]):
            news = json.loads(self._store.get(ABORTED))
            self.tell(CollectiveError(f"rank {news['rank']} aborted: {news['reason']}"))
        self._answer_questions()
        for rank, peer in self._peers.items():
            if peer.left:
                continue
            self._judge(rank, peer)
            self._orders.compare(peer.state.get("groups", {}))
        self._orders.settle()

    def _beat(self, left: bool) -> None:
        self._beats += 1
        state = {
            "beat": self._beats,
            "left": left,
            "entry": entry_state(self.recorder.current()),
            "turns": self.turns,
            "groups": {name: checker.history.position for name, checker in list(self.checkers.items())[-16:]},
        }
        self._store.set(f"beat/{self.rank}", json.dumps(state))

    def _judge(self, rank: int, peer: Peer) -> None:
        """Warn of a rank that has been silent for a while; after the time limit it is news."""
        if self.news is not None:
            return
        if peer.quiet >= self.timeout:
            text = self._silence(rank, peer)
            self.tell(CollectiveTimeout(text))
            if self.world_size > NEIGHBOURS + 1:
                self.post("silent", text=text)
        elif peer.quiet >= min(self.timeout / 2, _WARN) and not peer.warned and peer.quiet > 4 * self.period:
            peer.warned = True
            log.warning("%s", self._silence(rank, peer))

    def _silence(self, rank: int, peer: Peer) -> str:
        mine = self.recorder.current()
        waiting = f"; rank {self.rank} is in {mine}" if mine is not None and mine.end is None else ""
        return (
            f"rank {rank} has shown no sign of life for {peer.quiet:.1f} s of the {self.timeout:g} s that it may: its "
            f"process is dead or frozen. It was last seen in {told(peer.state.get('entry'))}{waiting}"
        )

    def tell(self, news: CollectiveError) -> None:
        if self.news is None:
            self.news = news
            self.dump(str(news))

    def _lose(self, error: RuntimeError) -> None:
        """The store has ended. Normal where all ranks are about to end; whoever waits for others will not see them."""
        self.unreachable = True
        current = self.recorder.current()
        news = CollectiveError(f"rank {self.rank} lost the store: rank 0 or the launcher has ended ({error})")
        if "timed out" in str(error) or "timeout" in str(error):
            news = CollectiveTimeout(self.lost_store(self.timeout))
        if current is not None and current.end is None:
            self.tell(news)
        elif self.news is None:
            self.news = news

    def lost_store(self, waited: float) -> str:
        """What to say of a store that has not answered for `waited` seconds."""
        holder = "rank 0" if _store_of_rank_0() else "the launcher"
        mine = self.recorder.current()
        return (
            f"rank {self.rank} has waited {waited:.1f} s for the store: the process that holds it, {holder}, is dead "
            f"or frozen; rank {self.rank} is in {mine}"
        )

    def _read_bulletin(self) -> None:
        newest = self._store.add("bulletin", 0)
        while self._read < newest:
            key = f"bulletin/{self._read + 1}"
            if not self._store.check([key]):
                self._patience -= 1
                if self._patience > 0:
                    return  # announced a moment ago
            else:
                self._take(json.loads(self._store.get(key)))
            self._read += 1
            self._patience = _PATIENCE

    def _take(self, message: dict[str, Any]) -> None:
        kind, group = message["kind"], message.get("group", "")
        if kind == "ask":
            self._questions.append((group, message["number"]))
        elif kind == "mismatch" and group in self.checkers:
            self.checkers[group].poison(message["number"], message["text"], message["broken"])
            self.dump(message["text"])
        elif kind == "order" and group in self.checkers:
            self._store.set(f"history/{group}/{self.rank}", json.dumps(self.checkers[group].history.latest()))
        elif kind == "dump":
            self.dump(message["reason"])
        elif kind == "silent":
            self.tell(CollectiveTimeout(message["text"]))

    def _answer_questions(self) -> None:
        """Where this rank has not come to the number asked about, it is asked again in the next look."""
        self._questions = [
            (group, number)
            for group, number in self._questions[-64:]
            if (checker := self.checkers.get(group)) is None or not checker.answer(self._store, number)
        ]


def _store_of_rank_0() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
