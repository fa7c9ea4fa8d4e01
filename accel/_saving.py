"""Who writes a checkpoint when several ranks save: rank 0 alone, with what each other rank hands it through the store.

No collective is involved, so a save on rank 0 only, or on a condition that differs between ranks, returns (T58).
Ranks that take part announce themselves; the others are given `GRACE` seconds.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import DistError

from accel import _checkpoint
from accel._codec import decode, encode
from accel.control import ControlPlane
from accel.errors import CheckpointError

log = logging.getLogger("accel")

WRITTEN = "ranks "  # what rank 0 says when it has written, before the ranks whose part is in it
GRACE = 2.0  # seconds that ranks wait to hear of each other; after a step they are milliseconds apart


class Saver:
    """Saves of one session. Keys in the store name path, step and how often this rank saved there at that step."""

    def __init__(self, control: ControlPlane, timeout: float) -> None:
        self._control = control
        self._timeout = timeout
        self._saves: Counter[str] = Counter()

    def save(
        self,
        path: str | os.PathLike[str],
        objects: dict[str, Any],
        mine: dict[str, Any],
        meta: dict[str, Any],
        step: int,
    ) -> None:
        """Write the checkpoint (rank 0), or hand over `mine` and wait until it is written. Raises `CheckpointError`."""
        if self._control.world_size == 1:
            _checkpoint.save(path, objects, ranks={0: mine}, meta=meta)
            return
        name = f"{os.path.abspath(path)}@{step}"  # noqa: PTH100 - the same text on every host, without resolving links
        self._saves[name] += 1
        key = "accel/save/" + hashlib.sha256(f"{name}#{self._saves[name]}".encode()).hexdigest()[:24]
        if self._control.rank == 0:
            self._write(key, path, objects, mine, meta)
        else:
            self._hand_over(key, path, mine)

    def _write(
        self,
        key: str,
        path: str | os.PathLike[str],
        objects: dict[str, Any],
        mine: dict[str, Any],
        meta: dict[str, Any],
    ) -> None:
        store = self._control.store
        store.set(f"{key}/begun", "1")
        others = {rank: f"{key}/rank/{rank}" for rank in range(1, self._control.world_size)}
        deadline = time.monotonic() + GRACE
        while not store.check(list(others.values())) and time.monotonic() < deadline:
            time.sleep(0.002)
        ranks = {0: mine, **{rank: decode(store.get(where)) for rank, where in others.items() if store.check([where])}}
        absent = sorted(set(others) - set(ranks))
        if absent:
            log.warning(
                "save(%s): rank(s) %s did not call save within %g s; their random state and loader position are not "
                "in it. Call save on every rank",
                path,
                absent,
                GRACE,
            )
        outcome = WRITTEN + " ".join(map(str, ranks))
        try:
            _checkpoint.save(path, objects, ranks=ranks, meta=meta)
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
            raise
        finally:
            store.set(f"{key}/done", outcome)
            for where in others.values():
                store.delete_key(where)

    def _hand_over(self, key: str, path: str | os.PathLike[str], mine: dict[str, Any]) -> None:
        store = self._control.store
        payload: Any = encode(mine, "rank state")  # bytes are taken as they are; torch's stub names only str
        store.set(f"{key}/rank/{self._control.rank}", payload)
        try:
            store.wait([f"{key}/begun"], timedelta(seconds=GRACE))
        except DistError:
            log.warning(
                "save(%s) on rank %d: rank 0 did not call save within %g s, so nothing was saved yet",
                path,
                self._control.rank,
                GRACE,
            )
            return
        try:
            store.wait([f"{key}/done"], timedelta(seconds=self._timeout))
        except DistError as error:
            raise CheckpointError(
                f"save({Path(path)}): rank 0 did not finish writing within timeout={self._timeout:g} s"
            ) from error
        outcome = store.get(f"{key}/done").decode()
        if not outcome.startswith(WRITTEN):
            raise CheckpointError(f"save({Path(path)}) failed on rank 0: {outcome}")
        if str(self._control.rank) not in outcome.removeprefix(WRITTEN).split():
            log.warning(
                "save(%s) on rank %d: rank 0 had written it, more than %g s before, without this rank's random "
                "state and loader position; call barrier() before save where ranks may be that far apart",
                path,
                self._control.rank,
                GRACE,
            )
