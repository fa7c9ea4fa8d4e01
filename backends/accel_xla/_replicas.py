"""Replicas that are threads of one process: what they share, and how they run one graph together.

On PJRT's CPU client a replica is a thread (`CPU_NUM_DEVICES`), on TPU v2 and v3 as well (two a process). Replicas
whose program holds a collective must share one executable: the CPU client tells runs apart by the executable's own
number, and ends the process 10 s after programs that were compiled separately failed to meet (torch_xla 2.9). So they
meet before a cut; one of them cuts first, and the others follow once its graph is compiled. They cannot wait for its
cut to return, which may last until the program has run, for which it needs them. And they meet after it: freeing an
input of a running program waits for its end with Python's lock held, which would keep the others from starting theirs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch_xla
from torch._C._distributed_c10d import HashStore
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch_xla.debug import metrics

from accel._words import named
from accel.errors import CollectiveError, CollectiveTimeout

_lock = threading.Lock()  # guards the tables below
_base: list[Store] = []
_meetings: dict[str, Meeting] = {}
_PAUSE = 0.0005  # seconds between two looks whether the graph is compiled


def store(rank: int, timeout: float) -> tuple[Store, str]:
    """The store of this process's replicas, with a key space that no earlier connection has used, and that key space.

    `timeout` in seconds.
    """
    with _lock:
        if not _base:
            _base.append(HashStore())
        _base[0].set_timeout(timedelta(seconds=timeout))
    connection = str(_base[0].add(f"connections/{rank}", 1))
    return PrefixStore(connection, _base[0]), connection


def meeting(name: str, ranks: list[int]) -> Meeting:
    """The place where the replicas of this process, `ranks`, meet that make the connection `name`."""
    with _lock:
        if name not in _meetings:
            _meetings[name] = Meeting(name, ranks)
        return _meetings[name]


class Meeting:
    """A barrier of the replicas of one process that names those that did not come, and that an abort opens."""

    def __init__(self, name: str, ranks: list[int]) -> None:
        self._name = name
        self._ranks = frozenset(ranks)
        self._changed = threading.Condition()
        self._here: set[int] = set()
        self._turn = 0
        self._compiled = _compiled()  # before this turn's graph
        self._led = 0  # turns in which the first cut has returned
        self._broken = False
        self._left: set[int] = set()

    def run(self, rank: int, timeout: float, cut: Callable[[], None]) -> None:
        """Call `cut` on every replica once all have come. Raises as `wait` does, without a call."""
        turn = self.wait(rank, timeout)
        if rank == min(self._ranks):
            try:
                cut()
            finally:
                self._led = turn  # after an error the others meet it themselves: their graph is the same
        else:
            while self._led < turn and _compiled() == self._compiled:
                time.sleep(_PAUSE)
            cut()
        self.wait(rank, timeout)

    def wait(self, rank: int, timeout: float) -> int:
        """Return the number of the turn when every replica has come.

        Raises `CollectiveTimeout` naming those that did not within `timeout` seconds, `CollectiveError` when one has
        given up.
        """
        end = time.monotonic() + timeout
        with self._changed:
            self._check()
            turn = self._turn
            self._here.add(rank)
            if self._here == self._ranks:
                self._here.clear()
                self._turn += 1
                self._compiled = _compiled()
                self._changed.notify_all()
                return self._turn
            while self._turn == turn:
                if not self._changed.wait(max(end - time.monotonic(), 0.0)) and self._turn == turn:
                    missing = sorted(self._ranks - self._here)
                    self._here.discard(rank)
                    raise CollectiveTimeout(
                        f"rank {rank} waited {timeout:g} s to run a graph with all ranks: {named(missing)} did not come"
                    )
                if self._turn == turn:
                    self._check()
            return turn + 1

    def give_up(self) -> None:
        """Let nobody wait here any more."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()

    def leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            if self._left == self._ranks:
                with _lock:
                    _meetings.pop(self._name, None)

    def _check(self) -> None:
        if self._broken:
            raise CollectiveError("another rank of this process has given up")


def _compiled() -> tuple[int, int]:
    """Graphs in torch_xla's cache, and how often one was found there: either changes once a cut's graph is compiled."""
    found = metrics.counter_value("CachedCompile") or 0
    return int(torch_xla._XLAC._xla_get_num_cached_compilation_graph()), int(found)
