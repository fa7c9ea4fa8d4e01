"""`Group`, `Call` and `CallWatch`: one operation between some ranks, and what its wait asks of everything else.

The watch makes the recorder's entry, has the call compared with the other ranks' (`accel._checks`), looks around while
a wait is slow, and words the errors. How the operation runs is `accel._launch`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from accel._checks import Checker
from accel._flight import Entry
from accel._signature import Signature
from accel._wait import poll, translated
from accel._words import named
from accel.errors import CollectiveError, CollectiveTimeout

if TYPE_CHECKING:
    from accel._launch import Launcher

_CALLERS = 3  # of a recorder's entry at least: CallWatch, Launcher, Collective


@dataclass(eq=False)
class Group:
    """Some ranks of the job, as `new_group` returns them. `ranks` are global and ascending."""

    name: str
    ranks: tuple[int, ...]
    handle: Any = None  # what the transport calls it; None for all ranks
    checker: Checker | None = None
    owner: Any = None  # the collective that made it

    @property
    def size(self) -> int:
        return len(self.ranks)

    def contains(self, rank: int) -> bool:
        return rank in self.ranks


@dataclass(slots=True)
class Call:
    """One operation: what all ranks must agree on, what it touches, and how its caller wants to wait."""

    signature: Signature
    tensors: Sequence[torch.Tensor]
    group: Group
    async_op: bool
    timeout: float | timedelta | None


class CallWatch:
    """What the wait of one call asks: look around while it is slow, and what to say when it fails."""

    __slots__ = ("_call", "_launcher", "entry", "number", "told")

    def __init__(self, launcher: Launcher, call: Call) -> None:
        self.told = False  # recorder and history know of the call
        self.number = 0  # of the call in its group; 0 where it is not compared between ranks
        self.entry: Entry | None = None  # in the flight recorder
        self._launcher = launcher
        self._call = call

    def begin(self, checker: Checker, end: float, early: bool) -> None:
        """Compare the call with the other ranks' where that is needed, until the time `end` of `time.monotonic`; the
        recorder's entry is made before a comparison, or before all else where `early`.
        """
        signature = self._call.signature
        numbered = signature.kind not in ("send", "recv")
        if early:
            self.record(checker.upcoming if numbered else 0)
        self._launcher.control.check_abort()
        if numbered:
            try:
                self.number = checker.begin(signature, end, self.record)
            except CollectiveError as error:
                self.over(type(error).__name__)
                raise
            if early:
                self.sent()

    def record(self, number: int) -> None:
        """Make the recorder's entry, where there is none yet."""
        if self.entry is None and self._call.group.checker is not None:
            recorder = self._launcher.control.recorder
            self.entry = recorder.open(self._call.group.name, number, self._call.signature, _CALLERS)

    def sent(self) -> None:
        """Make the recorder's entry and the history's, where they are not made yet."""
        if not self.told:
            self.told = True
            self.record(self.number)
            if self.number and self._call.group.checker is not None:
                self._call.group.checker.passed(self.number, self._call.signature)

    def check_abort(self) -> None:
        self._launcher.control.check_abort()

    def last_words(self) -> None:
        self._launcher.control.last_words()
        if self._call.group.checker is not None:
            self._call.group.checker.check_poison()

    def fault(self, error: RuntimeError) -> str | None:
        return self._launcher.fault(error, self._call.group.ranks)

    def slow(self, left: float) -> None:
        self.check_abort()
        checker = self._call.group.checker
        if self.number and checker is not None:
            checker.look(self.number, self._call.signature, left)
            if checker.compares:
                self._launcher.control.check_left(checker.ranks, checker.name, self.number, left)

    def settled(self, end: float) -> None:
        checker = self._call.group.checker
        if checker is not None and self.number in checker.answered:
            checker.settle(self.number, self._call.signature, end)

    def over(self, failed: str) -> None:
        if self.entry is None:
            self.record(self.number)
        if self.entry is not None:
            self.entry.close(failed)

    def timed_out(self, limit: float) -> CollectiveTimeout:
        control, checker = self._launcher.control, self._call.group.checker
        absent = checker.absent(self.number) if checker is not None and self.number else control.silent()
        text = f"{self.describe()} timed out after {limit:.3g} s"
        if absent:
            text += f": no sign of {named(absent)}{control.last_seen(absent)}"
        return CollectiveTimeout(text + control.hung(text))

    def left_hanging(self) -> None:
        self._launcher.stuck = True

    def describe(self) -> str:
        control = self._launcher.control
        return (
            f"{self._call.signature} in group {self._call.group.name!r} on rank {control.rank} of {control.world_size}"
        )

    def synchronize(self, limit: float) -> None:
        device = self._launcher.device
        device.flush()
        with translated(self.describe, self.last_words, self.fault):
            if self._launcher.joined and not self._launcher.transport.blocks:
                # The wait before only ordered streams: the operation itself may hang, and synchronize() with it.
                event = device.event()
                event.record()
                if not poll(event.query, limit, self.check_abort):
                    self.left_hanging()
                    raise self.timed_out(limit)
            device.synchronize()
