"""`Backend`: the parts of one kind of hardware, and `BackendSpec`: what a backend package registers.

An entry point of the group `accel.backends` names a `BackendSpec`. The module that holds it must not import torch or a
vendor package: listing backends loads every registered spec, in processes that may still fork.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from accel.capabilities import CapabilityTable
    from accel.collective import Collective
    from accel.device import Device
    from accel.memory import Memory
    from accel.numerics import Numerics
    from accel.precision import Precision
    from accel.transport import Transport


@dataclass(frozen=True)
class BackendInfo:
    """One line of `accel.backends()`."""

    name: str
    usable: bool
    reason: str  # why it is or isn't usable
    versions: dict[str, str] = field(default_factory=dict)  # package or driver -> version
    origin: str | None = None  # "measured" on hardware, "emulated" on an emulator; None when unusable
    hardware: str | None = None  # the hardware found, in words; None when none was found
    aliases: tuple[str, ...] = ()


class BackendSpec(Protocol):
    """What an entry point of the group `accel.backends` names."""

    name: str
    aliases: tuple[str, ...]

    def hardware(self) -> str | None:
        """The hardware present on this machine, in words, from device files or the environment; None when absent.

        Called on every selection: it must be quick and must not import torch or a vendor package.
        """

    def probe(self) -> BackendInfo:
        """Whether the backend can be used and why. May start a subprocess; must not initialise a device here."""

    def load(self) -> BackendParts:
        """Import what is needed and build the parts. Called once a session.

        A backend whose ranks are not processes under torch's launcher also has

            run_replicas(body: Callable[[int], None], count: int) -> int

        which runs `body(index)` in `count` ranks on this host and returns the exit code of the first that failed, or 0;
        its caller then ends the process. `accel launch` and `accel.testing` start ranks by it.
        """


@runtime_checkable
class NeedsVariables(Protocol):
    """A spec whose vendor library takes settings of a session from the environment only."""

    def variables(self, timeout: float) -> dict[str, str]:
        """Vendor variables for a session with this limit, in seconds; written before `load`, never over the user's."""


@dataclass(frozen=True)
class BackendParts:
    """The four small things that a backend supplies, and its capability table."""

    device: Device
    transport: Transport
    numerics: Numerics
    memory: Memory
    capabilities: CapabilityTable


@dataclass(frozen=True)
class Backend:
    """One backend, ready to use. `collective` has world size 1 until `accel.init` connects it."""

    name: str
    kind: str  # "eager" or "lazy"
    origin: str  # "measured" or "emulated"
    versions: dict[str, str]
    device: Device
    collective: Collective
    precision: Precision
    memory: Memory
    transport: Transport
    _capabilities: CapabilityTable

    def capabilities(self) -> CapabilityTable:
        """The table of what is native, emulated or unsupported here, each with one line of why."""
        return self._capabilities
