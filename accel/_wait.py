"""Waiting in slices: every wait of accel wakes up twice a second to look whether waiting still makes sense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from accel.errors import AccelError, CollectiveError, CollectiveTimeout
from accel.transport import Handle

SLICE = 0.5  # seconds; a wait longer than this is slow, and looks around
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02  # seconds between two looks at the store, growing


def wait_sliced(handle: Handle, seconds: float, between: Callable[[], None]) -> bool:
    """Wait for `handle` for up to `seconds`; call `between`, which may raise, after each slice. False: not finished."""
    deadline = time.monotonic() + seconds
    while not handle.wait(max(min(SLICE, deadline - time.monotonic()), 0.001)):
        between()
        if time.monotonic() >= deadline:
            return False
    return True


def poll(ready: Callable[[], bool], seconds: float, between: Callable[[], None]) -> bool:
    """Ask `ready` until it is true or `seconds` have passed; call `between`, which may raise, twice a second."""
    start = look = time.monotonic()
    pause = _FIRST_PAUSE
    while not ready():
        now = time.monotonic()
        if now - look > SLICE:
            look = now
            between()
        if now - start >= seconds:
            return False
        time.sleep(min(pause, seconds - (now - start)))
        pause = min(pause * 1.5, _LONGEST_PAUSE)
    return True


@contextmanager
def translated(
    what: Callable[[], str],
    look: Callable[[], None] | None = None,
    fault: Callable[[RuntimeError], str | None] | None = None,
) -> Iterator[None]:
    """Raise what torch.distributed raises inside as `CollectiveError` or `CollectiveTimeout`; our own errors pass.

    `look` is called first and may raise an error that knows more: that a rank had given up, and why. `fault` says what
    the fabric's error means.
    """
    try:
        yield
    except AccelError:
        raise
    except RuntimeError as error:
        if look is not None:
            look()
        raise failure(error, what(), fault(error) if fault else None) from error


def failure(error: RuntimeError, what: str, meaning: str | None = None) -> CollectiveError:
    """The error of accel for what torch.distributed raised while `what` ran; `meaning`: as the fabric explains it."""
    if meaning is not None:
        return CollectiveError(f"{what} failed: {meaning}")
    text = str(error).strip().split("\n", maxsplit=1)[0].split(". This is typically")[0]  # gloo goes on with advice
    if "timed out" in text.lower():
        return CollectiveTimeout(f"{what} timed out in the fabric: {text}")
    return CollectiveError(f"{what} failed: {text}; a peer ended or the network broke, so this group cannot go on")


# What the network says when the process at its other end is gone.
CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


class HandleSet(Handle):
    """Several operations as one; `finish` runs once when all are over."""

    def __init__(self, handles: Sequence[Handle], finish: Callable[[], None] | None = None) -> None:
        self._left = list(handles)
        self._finish = finish

    def wait(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while self._left:
            if not self._left[0].wait(None if end is None else max(end - time.monotonic(), 0.0)):
                return False
            del self._left[0]
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()
        return True

    def done(self) -> bool:
        return all(handle.done() for handle in self._left)
