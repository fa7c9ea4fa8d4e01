"""SIGUSR1 as a request for the flight record, noticed even while the main thread is blocked in a vendor's call.

Python runs a signal's handler in the main thread only, once that returns from C. But what receives the signal writes
its number into a pipe at once (`signal.set_wakeup_fd`), and that pipe is read by a thread of the watcher.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from pathlib import Path
from types import FrameType

log = logging.getLogger("accel")

NUMBER = signal.SIGUSR1
_readers: list[DumpSignal] = []  # of all sessions of this process; the first owns the pipe
_pipe: list[int] = []
_lock = threading.Lock()


class DumpSignal:
    """One session's view of the signal. Does nothing where somebody else handles SIGUSR1, or off the main thread."""

    def __init__(self) -> None:
        self._came = False
        with _lock:
            _readers.append(self)
            if not _pipe and threading.current_thread() is threading.main_thread() and not _taken():
                _install()

    def came(self) -> bool:
        """Whether SIGUSR1 came since this was last asked."""
        _drain()
        came, self._came = self._came, False
        return came

    def close(self) -> None:
        with _lock:
            if self in _readers:
                _readers.remove(self)
            if not _readers and _pipe and threading.current_thread() is threading.main_thread():
                _remove()


def _install() -> None:
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:  # somebody's event loop: leave it alone
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
        log.info("SIGUSR1 writes no flight record: signal.set_wakeup_fd is in use")
        return
    signal.signal(NUMBER, _ignore)
    _pipe.extend((reader, writer))


def _remove() -> None:
    signal.signal(NUMBER, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    while _pipe:
        os.close(_pipe.pop())


def _drain() -> None:
    with _lock:
        if not _pipe:
            return
        with contextlib.suppress(BlockingIOError):
            if NUMBER in os.read(_pipe[0], 4096):
                for reader in _readers:
                    reader._came = True


def _ignore(number: int, frame: FrameType | None) -> None:
    """Keeps the signal from ending the process; the pipe tells of it."""


def _taken() -> bool:
    """Whether SIGUSR1 has a handler, one in C that Python does not know of included."""
    if signal.getsignal(NUMBER) not in (signal.SIG_DFL, signal.SIG_IGN):
        return True
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (NUMBER - 1) & 1)
    return False
