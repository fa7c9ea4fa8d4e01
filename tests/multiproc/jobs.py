"""A `Collective` on gloo without a session, for functions that run as ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from accel import rendezvous
from accel._store import connect
from accel.collective import Collective
from accel.control import ControlPlane
from accel_cpu.device import CpuDevice
from accel_cpu.transport import CpuTransport


@contextmanager
def control_plane(timeout: float = 30.0, **options: int) -> Iterator[ControlPlane]:
    """The control plane of the job that the environment describes."""
    place = rendezvous.read()
    control = ControlPlane(connect(place, timeout), place.rank, place.world_size, timeout, **options)
    try:
        yield control
    finally:
        control.close()


@contextmanager
def collective(timeout: float = 30.0, check: str = "first") -> Iterator[Collective]:
    """A connected `Collective`, destroyed at the end."""
    with control_plane(timeout) as control:
        connected = Collective.connect(CpuTransport(), CpuDevice(), control, timeout=timeout, check=check)
        try:
            yield connected
        finally:
            connected.destroy()
