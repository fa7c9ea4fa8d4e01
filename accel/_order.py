"""`Orders`: ranks that passed the same known collectives in another order, found by comparing running digests.

Belongs to the watcher's thread. The rank that finds a difference asks all ranks of the group for their histories,
says where they first differ, and breaks the group.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import Store

from accel._history import first_difference
from accel._words import differ

if TYPE_CHECKING:
    from accel._checks import Checker

_TOLD = 3.0  # seconds that all ranks have to tell their histories


class Orders:
    """`checkers`: of this rank, by group. `post(kind, **fields)`: a message to all ranks."""

    def __init__(self, store: Store, checkers: Mapping[str, Checker], post: Callable[..., None]) -> None:
        self._store = store
        self._checkers = checkers
        self._post = post
        self._since: dict[str, float] = {}  # groups whose histories differ -> when this rank asked; below 0: settled

    def compare(self, positions: Mapping[str, Sequence[int]]) -> None:
        """Another rank is at these numbers of its groups, with these digests."""
        for group, (number, chain) in positions.items():
            checker = self._checkers.get(group)
            if checker is None or group in self._since or checker.poisoned or checker.broken:
                continue
            if checker.history.differs(number, chain):
                self._since[group] = time.monotonic()
                if self._store.add(f"order/{group}", 1) == 1:
                    self._post("order", group=group)
                else:
                    self._since[group] = -1.0  # another rank is about it

    def settle(self) -> None:
        """Once all ranks of a group have told their histories, or have had time to: say where they first differ."""
        for group, since in self._since.items():
            if since < 0:
                continue
            ranks = self._checkers[group].ranks
            have = [rank for rank in ranks if self._store.check([f"history/{group}/{rank}"])]
            if len(have) < len(ranks) and time.monotonic() - since < _TOLD:
                continue
            self._since[group] = -1.0
            found = first_difference({r: json.loads(self._store.get(f"history/{group}/{r}")) for r in have})
            broken = "ranks issued known collectives in another order, so what was reduced since is wrong"
            if found is None:
                number, text = 1, f"ranks issued different collectives in group {group!r}, too long ago to name them"
            else:
                number, sides = found
                text = differ(number, group, sides)
            self._post(
                "mismatch", group=group, number=number, text=f"{text}. The group is no longer usable: {broken}",
                broken=broken,
            )  # fmt: skip
