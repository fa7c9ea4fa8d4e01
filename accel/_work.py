"""`Work`: one collective in flight, as users hold it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch

from accel._timeout import seconds
from accel._wait import SLICE, poll, translated, wait_sliced
from accel.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout
from accel.transport import Handle

_DRAIN = 5.0  # seconds that an operation which others completed only to clear the way may take


class Watch(Protocol):
    """What a wait asks of the collective that it belongs to."""

    def check_abort(self) -> None:
        """Raise if a rank has given up."""

    def fault(self, error: RuntimeError) -> str | None:
        """What the fabric's error means, or None."""

    def slow(self, left: float) -> None:
        """Look around after a slice of waiting; raises when waiting on makes no sense."""

    def timed_out(self, limit: float) -> CollectiveTimeout:
        """The error for a wait that took `limit` seconds in vain."""

    def settled(self, end: float) -> None:
        """The fabric has finished; raises where other ranks meant something else by it, which they are asked until
        the time `end` of `time.monotonic`.
        """

    def over(self, failed: str) -> None:
        """The operation has ended, in the error named `failed` or, where that is empty, well."""

    def left_hanging(self) -> None:
        """The wait failed while the operation is still in flight, perhaps for ever."""

    def describe(self) -> str: ...

    def synchronize(self, limit: float) -> None:
        """Cut a lazy graph and block the host until the device has finished; raises `CollectiveTimeout` after `limit`
        seconds where the fabric orders streams, `CollectiveError` when a rank has given up meanwhile.
        """


class Work:
    """A collective in flight. `handle` None: it was over before it began (world size 1, or nothing to send)."""

    __slots__ = ("_error", "_finish", "_handle", "_limit", "_over", "_result", "_watch", "tensors")

    def __init__(
        self,
        handle: Handle | None,
        finish: Callable[[], Any],
        tensors: Sequence[torch.Tensor],
        watch: Watch,
        limit: float,
    ) -> None:
        self._handle = handle
        self._finish = finish
        self._watch = watch
        self._limit = limit
        self._result: Any = None
        self._over = False
        self._error: CollectiveError | None = None
        self.tensors = tensors  # what the operation reads or writes, kept alive until it is over

    def wait(self, timeout: float | timedelta | None = None, host: bool = False) -> None:
        """Make the result usable by whatever follows on this device; with `host`, by the host as well.

        On cuda and npu the plain form orders streams and returns at once; on cpu it blocks. Raises
        `CollectiveTimeout` after `timeout` seconds (default: the collective's own limit) and may then be called
        again; raises `CollectiveError` when a peer died or a rank aborted, and `CollectiveMismatch` when ranks turn
        out to have issued different operations.
        """
        limit = self._limit if timeout is None else seconds(timeout)
        if not self._over:
            self._complete(time.monotonic() + limit, limit)
        if host:
            self._watch.synchronize(limit)

    def complete(self, end: float) -> None:
        """As `wait`, for a call that has until the time `end` of `time.monotonic`, having used a part of its limit."""
        if not self._over:
            self._complete(end, self._limit)

    def result(self) -> Any:
        """Wait, then return the result: the input tensor itself for in-place operations, else a new tensor."""
        if not self._over:
            self._complete(time.monotonic() + self._limit, self._limit)
        return self._result

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._over or self._handle is None or self._handle.done()

    @property
    def failed(self) -> bool:
        """Whether a wait has raised an error that will not pass."""
        return self._error is not None

    def _complete(self, end: float, limit: float) -> None:
        """Wait until the time `end`; `limit` is the number of seconds that an error names."""
        if self._error is not None:
            raise self._error
        try:
            handle = self._handle
            if handle is not None:
                if not handle.wait(min(SLICE, max(end - time.monotonic(), 0.0))):
                    self._await(handle, end, limit)
                self._watch.settled(end)
            self._result = self._finish()
        except RuntimeError as raised:
            try:
                with translated(self._watch.describe, self._watch.check_abort, self._watch.fault):
                    raise
            except CollectiveError as found:
                # The fabric's own limit is the session's, and it may be the first to notice: said like accel's.
                theirs = isinstance(found, CollectiveTimeout) and found is not raised
                known = self._watch.timed_out(limit) if theirs else found
                self._watch.over(type(known).__name__)
                if self._handle is not None and not self._handle.done():
                    self._watch.left_hanging()
                if not isinstance(known, CollectiveTimeout):
                    self._error = known
                raise known from (raised if theirs else known.__cause__)
        self._over = True
        self._handle = None
        self._watch.over("")

    def _await(self, handle: Handle, end: float, limit: float) -> None:
        """Go on after the first slice of a wait until `end`."""

        def look() -> None:
            self._watch.slow(max(end - time.monotonic(), SLICE))

        try:
            look()
            left = end - time.monotonic()
            finished = left > 0 and wait_sliced(handle, left, look)
        except CollectiveMismatch:
            poll(handle.done, _DRAIN, lambda: None)
            raise
        if not finished:
            raise self._watch.timed_out(limit)
