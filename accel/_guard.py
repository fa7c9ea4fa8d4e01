"""`Guard`: the second thread beside each rank, which talks to nobody and therefore cannot be held up.

It writes the flight record on SIGUSR1, notices when the store itself no longer answers and when the launch agent that
started this rank has ended, and where news cannot reach the rank's own thread, since that is blocked in a vendor's
call, it prints them and ends the process.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

from accel._signals import DumpSignal
from accel.errors import CollectiveError, CollectiveTimeout

if TYPE_CHECKING:
    from accel._watch import Watcher

log = logging.getLogger("accel")

_HEARD = 2.5  # seconds that a rank's own thread has to raise the news that another one is silent
_ENDING = 10.0  # seconds, at most, that it has for other news, such as that a rank gave up


class Guard:
    """The guard of one watcher; `run` is the body of its thread."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._signal = DumpSignal()
        self._unheard = 0.0  # seconds that there have been news which nobody has raised
        self._printed = False
        # torchrun's agent ends its ranks when it is asked to end, not when it is killed.
        self._agent = os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None

    def close(self) -> None:
        self._signal.close()

    def run(self) -> None:
        watcher, last = self._watcher, time.monotonic()
        looked = -1
        while not watcher.stopping.wait(watcher.period):
            now = time.monotonic()
            elapsed, last = min(now - last, 2 * watcher.period), now
            if self._signal.came():
                path = watcher.dump("SIGUSR1")
                log.warning("rank %d: flight record written on SIGUSR1: %s", watcher.rank, path)
            watcher.no_answer = watcher.no_answer + elapsed if looked == watcher.looked and watcher.looking else 0.0
            looked = watcher.looked
            if watcher.no_answer >= watcher.timeout and watcher.news is None and watcher.watching:
                watcher.unreachable = True
                watcher.tell(CollectiveTimeout(watcher.lost_store(watcher.no_answer)))
            if self._agent is not None and os.getppid() != self._agent and watcher.watching:
                self._agent = None
                watcher.tell(
                    CollectiveError(f"the launch agent of rank {watcher.rank} has ended: nothing watches over it")
                )
            self._insist(elapsed)

    def _insist(self, elapsed: float) -> None:
        """Where this rank's own thread does not raise the news: print them, and end the process if it is blocked."""
        watcher = self._watcher
        mismatch = next((text for checker in list(watcher.checkers.values()) if (text := checker.poisoned)), None)
        text = str(watcher.news) if watcher.news is not None else mismatch
        if text is None or watcher.heard:
            self._unheard = 0.0
            return
        self._unheard += elapsed
        current = watcher.recorder.current()
        inside = current is not None and current.end is None
        if self._unheard >= _HEARD / 2 and not self._printed and inside:
            self._printed = True
            log.error("rank %d: %s", watcher.rank, text)
        silence = isinstance(watcher.news, CollectiveTimeout)
        if self._unheard < (_HEARD if silence else min(_ENDING, watcher.timeout)) or not (
            silence or inside or (watcher.streams and not watcher.unreachable)
        ):
            return
        where = f"; it is blocked in {current}, which cannot be interrupted" if inside else ""
        print(  # noqa: T201 - the process ends here
            f"accel: rank {watcher.rank} ends with exit code 1: {text}{where}. Flight record: {watcher.dump(text)}",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(2, all_threads=True)
        os._exit(1)
