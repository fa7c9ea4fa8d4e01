"""What a session saves beside the user's objects, and how it takes it up again: loss scale, random state, loader
position.

Who writes is `_saving`'s business, the files are `_checkpoint`'s, an object's state is `_state`'s.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from accel import _checkpoint, _state
from accel._boundary import Boundary
from accel._loader import Batches
from accel._masks import Masks
from accel._saving import Saver
from accel._start import Start

log = logging.getLogger("accel")

SCALER = "accel-scaler"  # its name among a checkpoint's objects; no keyword argument can collide with it


class Persistence:
    """Checkpoints of one session."""

    def __init__(self, start: Start, batches: Batches, boundary: Boundary, masks: Masks) -> None:
        self._start = start
        self._device = start.backend.device
        self._batches = batches
        self._boundary = boundary
        self._masks = masks
        self._saver = Saver(start.control, start.timeout)

    def save(self, path: str | os.PathLike[str], objects: dict[str, Any], micro_batches: int) -> None:
        self._device.flush()  # one graph for all that is pending, not one a tensor when it is copied (T58)
        position = self._batches.position
        mine: dict[str, Any] = {
            "rng": self._device.rng_state(),
            "position": None if position is None else position.state(),
        }
        if self._masks.state():
            mine["masks"] = self._masks.state()
        states: dict[str, Any] = {}
        if self._start.place.rank == 0:
            states = {name: _state.state_of(name, obj) for name, obj in objects.items()}
            if self._start.scaler is not None:
                states[SCALER] = self._start.scaler.state_dict()
        meta = {
            "world_size": self._start.place.world_size,
            "backend": self._start.backend.name,
            "device": str(self._device.torch_device),
            "steps": self._boundary.steps,
        }
        self._saver.save(path, states, mine, meta, micro_batches)

    def load(self, path: str | os.PathLike[str], objects: dict[str, Any]) -> dict[str, Any]:
        checkpoint = _checkpoint.read(path)
        states = dict(checkpoint.objects)
        saved, scaler = states.pop(SCALER, None), self._start.scaler
        if scaler is not None and saved is not None:
            scaler.check_state(saved)
        plain = _state.apply_states(objects, states)
        notes = []
        if scaler is not None and saved is not None:
            scaler.load_state_dict(saved)
        elif scaler is not None:
            notes.append(f"it holds no loss scale (saved without fp16); this run starts at {scaler.scale:g}")
        elif saved is not None:
            notes.append("its loss scale is not used, since this run's precision needs none")
        self._boundary.steps = int(checkpoint.meta.get("steps", 0))
        for note in [*notes, *self._load_rank(checkpoint)]:
            log.warning("load(%s): %s", path, note)
        return plain

    def _load_rank(self, checkpoint: _checkpoint.Checkpoint) -> list[str]:
        """Take up this rank's random state and loader position; a note for each part that is lost."""
        place, seed = self._start.place, self._start.seed
        mine, saved_world = checkpoint.ranks.get(place.rank), int(checkpoint.meta["world_size"])
        self._batches.resume, notes = None, []
        absent = sorted(set(range(saved_world)) - set(checkpoint.ranks))
        if saved_world != place.world_size:
            notes.append(
                f"saved with {saved_world} rank(s), loaded with {place.world_size}: a resumed epoch "
                f"starts at its first batch"
            )
        elif absent:  # all ranks must go on from the same place
            notes.append(f"rank(s) {absent} had no part in it: a resumed epoch starts at its first batch on every rank")
        else:
            self._batches.resume = None if mine is None else mine["position"]
        if mine is None:
            if seed is not None:  # a stream of its own, not the one this run began with
                self._device.seed(seed + place.rank + 1_000_003 * (self._boundary.steps + 1))
            return [*notes, f"it has no random state of rank {place.rank}; that rank's generators are seeded anew"]
        if "masks" in mine:
            self._masks.load(mine["masks"])
        elif self._masks.state():
            notes.append("it holds no masks of host_dropout; they start anew")
        return notes + self._device.set_rng_state(mine["rng"])
