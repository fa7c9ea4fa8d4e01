"""`Waiters`: threads that wait for operations whose own wait can neither be sliced nor interrupted.

That is gloo's send and receive: a receive whose wait times out is lost and takes the connection with it (seen with
torch 2.13). A thread that has waited is kept for the next operation, since starting one costs more than a small message
does; as many live as operations were ever in flight at once.
"""

from __future__ import annotations

import threading
from typing import Any

from accel.transport import Handle


class Waiters:
    """The threads of one transport."""

    def __init__(self) -> None:
        self._idle: list[_Waiter] = []
        self._closed = False

    def handle(self, work: Any) -> Handle:
        """A handle of `work`. A thread waits for it from the first time on that somebody asks."""
        return _Waited(work, self)

    def wait_for(self, handle: _Waited) -> None:
        """Let a thread wait for `handle`."""
        try:
            waiter = self._idle.pop()
        except IndexError:
            waiter = _Waiter(self)
        waiter.give(handle)

    def rest(self, waiter: _Waiter) -> bool:
        """Take back a thread that is done; False where it may end. Of the thread itself."""
        if not self._closed:
            self._idle.append(waiter)
        return not self._closed

    def close(self) -> None:
        """End the idle threads; one whose operation never ends stays, and keeps nobody from ending."""
        self._closed = True
        while self._idle:
            self._idle.pop().give(None)


class _Waited(Handle):
    def __init__(self, work: Any, pool: Waiters) -> None:
        self.work = work
        self.error: RuntimeError | None = None
        self.over = threading.Lock()  # held while a thread waits
        self._pool: Waiters | None = pool  # None once a thread waits
        self._seen = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._seen:
            self._begin()
            if not self.over.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
                return False
            self._seen = True
        if self.error is not None:
            raise self.error
        return True

    def done(self) -> bool:
        self._begin()
        return self._seen or not self.over.locked()

    def _begin(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            self.over.acquire()
            pool.wait_for(self)


class _Waiter:
    """One thread, and the operation that it waits for."""

    def __init__(self, pool: Waiters) -> None:
        self._pool = pool
        self._next: _Waited | None = None
        self._given = threading.Lock()  # held until there is something to do
        self._given.acquire()
        threading.Thread(target=self._run, name="accel-p2p", daemon=True).start()

    def give(self, handle: _Waited | None) -> None:
        """Wait for `handle`; None: end."""
        self._next = handle
        self._given.release()

    def _run(self) -> None:
        resting = True
        while resting:
            self._given.acquire()
            handle, self._next = self._next, None
            if handle is None:
                return
            try:
                handle.work.wait()
            except RuntimeError as error:
                handle.error = error
            resting = self._pool.rest(self)  # before the handle tells: the next operation finds this thread
            handle.over.release()
