"""`Start`: what `accel.init` hands to a session and its parts."""

from __future__ import annotations

from dataclasses import dataclass

from accel._gradsync import GradSync
from accel._threads import Threads
from accel.backend import Backend
from accel.control import ControlPlane
from accel.rendezvous import Rendezvous
from accel.scaler import Scaler


@dataclass(frozen=True)
class Start:
    """What a session begins with."""

    backend: Backend
    place: Rendezvous
    local_rank: int
    local_world_size: int
    threads: Threads
    control: ControlPlane
    sync: GradSync
    scaler: Scaler | None
    accumulate: int
    clip_norm: float | None
    seed: int | None
    timeout: float
