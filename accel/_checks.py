"""`Checker`: do all ranks of a group issue the same collective? If not, the same typed error on every rank.

Each collective of a group has a number. A rank that meets a signature for the first time publishes it in the store
under that number and compares it with what the others publish there, before anything is sent. A rank for which the
signature is not new goes on without a word; its watcher answers for it when asked, from the history of what it
passed, so neither waits for the other for ever. Where they differ the ranks that had not begun take part with scratch
tensors, so that the group's operations pair up again, and all raise.

What "first" does not see in advance is an order: two signatures that had both passed, swapped on some ranks. Their
histories differ then; the watchers notice within a moment and the group is broken, with the first difference named.
"every" compares each call before it is sent.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import Store

from accel._history import History
from accel._signature import Signature, parse
from accel._timeout import left
from accel._wait import poll
from accel._words import differ, named
from accel.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout

if TYPE_CHECKING:
    from accel.control import ControlPlane

MODES = ("first", "every", "off")
GRADIENTS = "gradients"  # the kind of a reduction that the fabric runs inside backward
_KEPT = 8  # own words left in the store; older ones are removed
_ABSENT = "absent"


class Checker:
    """The numbers and signatures of one group, as one of its ranks sees them.

    `drain(signature)` takes part in an operation that others had already begun, with a scratch tensor.
    """

    def __init__(
        self, control: ControlPlane, name: str, ranks: Sequence[int], mode: str, drain: Callable[[Signature], None]
    ) -> None:
        self.broken: str | None = None
        self.name = name
        self.ranks = ranks
        self.history = History()
        self._control = control
        self._mode = mode
        self._drain = drain
        self._known: dict[Signature, int] = {}  # signatures that have passed -> their digest
        self._number = 0
        self._published: list[int] = []  # numbers of our words in the store, oldest first
        self.answered: set[int] = set()  # numbers that the watcher was asked about: someone compares there
        self._lock = threading.Lock()  # of the two below
        self._raised = 0  # the latest number that this rank raised a mismatch for
        self._poison: tuple[int, str] | None = None  # a mismatch that another rank found and this one has not raised

    def begin(self, signature: Signature, end: float, recorded: Callable[[int], None]) -> int:
        """Number the next collective, and compare it with the others' where needed, which may take long: `recorded` is
        called with the number before.

        Raises `CollectiveMismatch` when ranks differ, `CollectiveTimeout` when some did not come before the time `end`
        of `time.monotonic`, and `CollectiveError` when an earlier failure left the group unusable.
        """
        if self._poison is not None:
            self.check_poison()
        if self.broken is not None:
            raise CollectiveError(f"{signature} in group {self.name!r} cannot run: {self.broken}. Start the job anew")
        number = self._number = self._number + 1
        if self._mode == "off":
            return number
        digest = self._known.get(signature)
        if digest is None or self._mode == "every":
            recorded(number)
            self._compare_first(number, signature, left(end))
            self._known[signature] = signature.digest() if digest is None else digest
        return number

    def passed(self, number: int, signature: Signature) -> None:
        """Collective `number` goes to the fabric, or has just gone: from now on the watcher answers for it."""
        if self._mode != "off":
            self.history.add(number, signature, self._known[signature])

    @property
    def compares(self) -> bool:
        """Whether ranks tell each other what they do in this group."""
        return self._mode != "off"

    @property
    def upcoming(self) -> int:
        """The number that the next collective gets."""
        return self._number + 1

    def look(self, number: int, signature: Signature, limit: float) -> None:
        """Called while a wait for collective `number` is slow: say what we are in, and compare it with what others
        say.
        """
        self.check_poison()
        if self._mode == "off":
            return
        if number not in self._published:
            self._publish(self._control.store, number, signature, sent=True)
        if len(_sides(self._views(number))) > 1:
            self._compare(number, limit, sent=True)

    def settle(self, number: int, signature: Signature, end: float) -> None:
        """Called when collective `number`, which somebody asked about, is over: its result may be scratch."""
        self.look(number, signature, left(end))
        self.answered.discard(number)

    def absent(self, number: int) -> list[int]:
        """The ranks that have given no sign of being in collective `number`."""
        if self._mode == "off":
            return []
        passed = {rank for rank in self.ranks if self._control.position(rank, self.name) >= number}
        views = self._views(number)
        return [rank for rank in self.ranks if rank not in views and rank not in passed]

    def check_poison(self) -> None:
        """Raise the mismatch that another rank has found, if there is one that this rank has not raised."""
        with self._lock:
            if self._poison is None:
                return
            at, text = self._poison
            self._poison = None
            self._raised = max(self._raised, at)
            if self._number > at and self.broken is None:  # operations after it were paired with other ones
                self.broken = f"this rank went on to collective {self._number} after ranks differed in number {at}"
            self.history.reset(self._number)
        raise CollectiveMismatch(text)

    # -- of the watcher's thread -----------------------------------------------------------------------------------

    @property
    def poisoned(self) -> str | None:
        """The mismatch that this rank has still to raise."""
        poison = self._poison
        return None if poison is None else poison[1]

    def answer(self, store: Store, number: int) -> bool:
        """Say what this rank passed as collective `number`; False where it has not come to it."""
        if self.history.position[0] < number:
            return False
        signature = self.history.signature(number)
        if signature is not None:
            self.answered.add(number)
            self._publish(store, number, signature, sent=True)
        return True

    def poison(self, number: int, text: str, broken: str | None) -> None:
        """Another rank found that ranks differ in collective `number`: raise it as soon as this rank's thread looks."""
        with self._lock:
            if broken is not None:
                self.broken = self.broken or broken
            if number > self._raised and self._poison is None:
                self._poison = (number, text)

    # --------------------------------------------------------------------------------------------------------------

    def _compare_first(self, number: int, signature: Signature, limit: float) -> None:
        """Compare before anything is sent."""
        self._publish(self._control.store, number, signature, sent=False)
        missing = self._compare(number, limit, sent=False)
        if missing:
            who = named(missing)
            self.broken = f"{who} did not take part in collective {number}"
            raise CollectiveTimeout(
                f"{signature} in group {self.name!r} timed out after {limit:.3g} s on rank {self._control.rank}: "
                f"no sign of {who} in collective {number}{self._control.last_seen(missing)}"
                + self._control.hung(f"{signature} timed out: no sign of {who}")
            )

    def _compare(self, number: int, limit: float, sent: bool) -> list[int]:
        """Wait for the word of every rank and compare; return the ranks that gave none. Raises `CollectiveMismatch`."""
        control, keys = self._control, [self._key(number, rank) for rank in self.ranks]
        asked = False

        def between() -> None:
            nonlocal asked
            control.check_abort()
            if self._poison is not None and self._poison[0] != number:  # its own is compared here, and cleared away
                self.check_poison()
            control.check_left(self.ranks, self.name, number, limit)
            if not asked:
                asked = True
                control.post_once(f"ask/{self.name}/{number}", kind="ask", group=self.name, number=number)

        poll(lambda: control.store.check(keys), limit, between)
        views = self._views(number)
        sides, missing = _sides(views), self.absent(number)
        if len(sides) < 2:
            return missing
        begun = [identity for identity, ranks in sides.items() if any(views[rank]["sent"] for rank in ranks)]
        if missing:
            self.broken = f"ranks issued different collectives as number {number}, and {named(missing)} none"
        elif len(begun) > 1:
            self.broken = f"ranks had begun different operations as collective {number}"
        elif begun and parse(begun[0]).kind == GRADIENTS:
            self.broken = "some ranks were reducing gradients, which only their backward can take part in"
        elif begun and not sent:
            self._drain(parse(begun[0]))
        words = {str(parse(identity)): ranks for identity, ranks in sides.items()}
        text = differ(number, self.name, words) + (
            f". The group is no longer usable: {self.broken}" if self.broken else ""
        )
        with self._lock:
            self._raised = number
            self._poison = None
            self.history.reset(number)
        fields = {"group": self.name, "number": number, "text": text, "broken": self.broken}
        control.post_once(f"mismatch/{self.name}/{number}", kind="mismatch", **fields)
        raise CollectiveMismatch(text)

    def _publish(self, store: Store, number: int, signature: Signature, sent: bool) -> None:
        word = json.dumps({"sent": sent, "identity": signature.identity()})
        store.set(self._key(number, self._control.rank), word)
        self._published.append(number)
        if len(self._published) > _KEPT:
            store.delete_key(self._key(self._published.pop(0), self._control.rank))

    def _views(self, number: int) -> dict[int, dict[str, Any]]:
        """The word of each rank that has given it. Other ranks remove old words, and `Store.get` would wait for those
        for ever; a comparison that cannot succeed reads without waiting.
        """
        views = {}
        for rank in self.ranks:
            word = self._control.store.compare_set(self._key(number, rank), _ABSENT, _ABSENT).decode()
            if word != _ABSENT:
                views[rank] = json.loads(word)
        return views

    def _key(self, number: int, rank: int) -> str:
        return f"check/{self.name}/{number}/{rank}"


def _sides(views: dict[int, dict[str, Any]]) -> dict[str, list[int]]:
    """The different signatures given, and the ranks that gave each."""
    sides: dict[str, list[int]] = {}
    for rank, view in views.items():
        sides.setdefault(view["identity"], []).append(rank)
    return sides
