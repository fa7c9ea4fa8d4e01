"""`Checker`: do all ranks of a group issue the same collective? If not, the same typed error on every rank.

Each collective of a group has a number. A rank that meets a signature for the first time publishes it in the store
under that number and compares it with what the others publish there, before anything is sent. A signature that has
passed costs one lookup afterwards; but a rank that then waits for long publishes what it waits in, so that a rank
that came with something else does not leave it hanging. What "first" cannot see: two signatures that had both passed
before, issued in different order on different ranks; "every" compares each call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from accel._wait import poll
from accel.control import ControlPlane, named
from accel.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout

MODES = ("first", "every", "off")
_KEPT = 8  # own words left in the store; older ones are removed
_SHOWN = 4  # shapes written out in an error
_ABSENT = "absent"


class Signature(NamedTuple):
    """What must be alike on all ranks. `root`: source of a broadcast, peer of a send or receive, -1 elsewhere."""

    kind: str
    op: str
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[torch.Size, ...]
    root: int = -1

    def __str__(self) -> str:
        dtypes = ", ".join(dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in self.dtypes))
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        if len(self.shapes) > _SHOWN:
            elements = sum(shape.numel() for shape in self.shapes)
            shapes = f"{len(self.shapes)} tensors, {elements} elements, digest {hash(self.shapes) & 0xFFFF:04x}"
        op = f"op={self.op}, " if self.op else ""
        root = f", {'dst' if self.kind == 'send' else 'src'}={self.root}" if self.root >= 0 else ""
        return f"{self.kind}({op}dtype={dtypes}, shape={shapes}{root})"


class Checker:
    """The numbers and signatures of one group, as one of its ranks sees them.

    `drain(signature)` takes part in an operation that others had already begun, with a scratch tensor, so that the
    group's operations pair up again after a mismatch.
    """

    def __init__(
        self, control: ControlPlane, name: str, ranks: Sequence[int], mode: str, drain: Callable[[Signature], None]
    ) -> None:
        self.broken: str | None = None
        self._control = control
        self._name = name
        self._ranks = ranks
        self._mode = mode
        self._drain = drain
        self._seen: set[Signature] = set()
        self._number = 0
        self._published: list[int] = []  # numbers of our words in the store, oldest first

    def begin(self, signature: Signature, limit: float) -> int:
        """Number the next collective, and compare it with the others' where needed.

        Raises `CollectiveMismatch` when ranks differ, `CollectiveTimeout` when some did not come within `limit`
        seconds, and `CollectiveError` when an earlier failure left the group unusable.
        """
        if self.broken is not None:
            raise CollectiveError(f"{signature} in group {self._name!r} cannot run: {self.broken}. Start the job anew")
        self._number += 1
        if self._mode == "off" or (signature in self._seen and self._mode == "first"):
            return self._number
        self._publish(self._number, signature, sent=False)
        missing = self._compare(self._number, limit, sent=False)
        if missing:
            self.broken = f"{missing} did not take part in collective {self._number}"
            raise CollectiveTimeout(
                f"{signature} in group {self._name!r} timed out after {limit:.3g} s on rank {self._control.rank}: "
                f"no sign of {missing}; never came, or issued something else that had passed the check before"
            )
        self._seen.add(signature)
        return self._number

    def look(self, number: int, signature: Signature, limit: float) -> None:
        """Called while a wait for collective `number` is slow: say what we are in, and compare it with what others
        say.
        """
        if self._mode == "off":
            return
        if number not in self._published:
            self._publish(number, signature, sent=True)
            self._control.note(f"{signature} in group {self._name!r}")
        if len(_sides(self._views(number))) > 1:
            self._compare(number, limit, sent=True)

    def absent(self, number: int) -> str:
        """The ranks that have given no sign of being in collective `number`, in words; empty where all have."""
        if self._mode == "off":
            return ""
        views = self._views(number)
        missing = [rank for rank in self._ranks if rank not in views]
        return named(missing) if missing else ""

    def _compare(self, number: int, limit: float, sent: bool) -> str:
        """Wait for the word of every rank and compare; return the ranks that gave none. Raises `CollectiveMismatch`."""
        store, keys = self._control.store, [self._key(number, rank) for rank in self._ranks]
        poll(lambda: store.check(keys), limit, self._control.check_abort)
        views = self._views(number)
        sides, missing = _sides(views), self.absent(number)
        if len(sides) < 2:
            return missing
        begun = [identity for identity, ranks in sides.items() if any(views[rank]["sent"] for rank in ranks)]
        if missing:
            self.broken = f"ranks issued different collectives as number {number}, and {missing} none"
        elif len(begun) > 1:
            self.broken = f"ranks had begun different operations as collective {number}"
        elif begun and not sent:
            self._drain(_parse(begun[0]))
        raise CollectiveMismatch(
            f"ranks issued different collectives as number {number} of group {self._name!r}: "
            + "; ".join(f"{named(ranks)}: {_parse(identity)}" for identity, ranks in sides.items())
            + (f". The group is no longer usable: {self.broken}" if self.broken else "")
        )

    def _publish(self, number: int, signature: Signature, sent: bool) -> None:
        identity = {
            "kind": signature.kind,
            "op": signature.op,
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in signature.dtypes],
            "shapes": [list(shape) for shape in signature.shapes],
            "root": signature.root,
        }
        word = json.dumps({"sent": sent, "identity": json.dumps(identity)})
        self._control.store.set(self._key(number, self._control.rank), word)
        self._published.append(number)
        if len(self._published) > _KEPT:
            self._control.store.delete_key(self._key(self._published.pop(0), self._control.rank))

    def _views(self, number: int) -> dict[int, dict[str, Any]]:
        """The word of each rank that has given it. Other ranks remove old words, and `Store.get` would wait for those
        for ever; a comparison that cannot succeed reads without waiting.
        """
        views = {}
        for rank in self._ranks:
            word = self._control.store.compare_set(self._key(number, rank), _ABSENT, _ABSENT).decode()
            if word != _ABSENT:
                views[rank] = json.loads(word)
        return views

    def _key(self, number: int, rank: int) -> str:
        return f"check/{self._name}/{number}/{rank}"


def _sides(views: dict[int, dict[str, Any]]) -> dict[str, list[int]]:
    """The different signatures given, and the ranks that gave each."""
    sides: dict[str, list[int]] = {}
    for rank, view in views.items():
        sides.setdefault(view["identity"], []).append(rank)
    return sides


def _parse(identity: str) -> Signature:
    view = json.loads(identity)
    dtypes = tuple(getattr(torch, name) for name in view["dtypes"])
    return Signature(
        view["kind"], view["op"], dtypes, tuple(torch.Size(shape) for shape in view["shapes"]), view["root"]
    )
