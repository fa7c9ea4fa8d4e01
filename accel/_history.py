"""`History`: the latest collectives of one group as this rank passed them, and a running digest of all of them.

Two ranks that passed the same collectives in the same order have the same digest at the same number. Written by the
thread that owns the session, read by its watcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accel._signature import Signature

KEPT = 2000
TOLD = 256  # entries that a rank tells the others when orders differ
_MASK = (1 << 63) - 1
_FACTOR = 6364136223846793005  # odd and large (Knuth's MMIX generator), so that each step mixes


class History:
    """A ring of (number, signature, running digest). `position` is the latest number and its digest."""

    def __init__(self) -> None:
        self.position = (0, 0)
        self.reset_at = 0  # digests up to this number are not compared
        self._ring: list[tuple[int, Signature | None, int] | None] = [None] * KEPT

    def add(self, number: int, signature: Signature | None, digest: int) -> None:
        chain = (self.position[1] * _FACTOR + digest) & _MASK
        self._ring[number % KEPT] = (number, signature, chain)
        self.position = (number, chain)

    def reset(self, number: int) -> None:
        """Collective `number` was refused on all ranks: they go on from one digest, whatever each had meant."""
        self.reset_at = number
        self._ring[number % KEPT] = (number, None, number)
        self.position = (number, number)

    def signature(self, number: int) -> Signature | None:
        """What this rank passed as `number`; None where it has not, or no longer knows."""
        slot = self._ring[number % KEPT]
        return slot[1] if slot is not None and slot[0] == number else None

    def differs(self, number: int, chain: int) -> bool:
        """Whether this rank had another digest at `number`; False where it cannot say."""
        slot = self._ring[number % KEPT]
        return slot is not None and slot[0] == number > self.reset_at and slot[2] != chain

    def latest(self) -> list[tuple[int, str]]:
        """Number and signature in words of the latest collectives, oldest first."""
        kept = sorted((slot for slot in self._ring if slot is not None and slot[1] is not None), key=lambda s: s[0])
        return [(number, str(signature)) for number, signature, _ in kept[-TOLD:]]


def first_difference(told: Mapping[int, Sequence[Sequence[object]]]) -> tuple[int, dict[str, list[int]]] | None:
    """The first number at which ranks passed different collectives: each one's words and the ranks that gave them."""
    known = {rank: {int(str(number)): str(words) for number, words in entries} for rank, entries in told.items()}
    for number in sorted(set().union(*(set(entries) for entries in known.values()))):
        sides: dict[str, list[int]] = {}
        for rank, entries in known.items():
            if number in entries:
                sides.setdefault(entries[number], []).append(rank)
        if len(sides) > 1:
            return number, sides
    return None
