"""The capability table: what a backend does natively, what is emulated, what it cannot do, and why.

Shared code asks this table instead of asking which vendor it runs on. A difference between vendors is a line here,
never an `if` in a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from accel.errors import UnsupportedError


class Support(str, Enum):
    """How a backend provides a feature."""

    NATIVE = "native"
    EMULATED = "emulated"
    UNSUPPORTED = "unsupported"


class Capability(NamedTuple):
    """One cell: how a feature is provided, and one line of why."""

    support: Support
    why: str

    @property
    def available(self) -> bool:
        return self.support is not Support.UNSUPPORTED


def native(why: str) -> Capability:
    return Capability(Support.NATIVE, why)


def emulated(why: str) -> Capability:
    return Capability(Support.EMULATED, why)


def unsupported(why: str) -> Capability:
    return Capability(Support.UNSUPPORTED, why)


class CapabilityTable(Mapping[str, Capability]):
    """Read-only map from a dotted feature name (`"precision.bf16"`, `"memory.peak_reset"`) to its cell."""

    def __init__(self, backend: str, cells: Mapping[str, Capability]) -> None:
        self.backend = backend
        self._cells = dict(cells)

    def __getitem__(self, feature: str) -> Capability:
        return self._cells[feature]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def offers(self, feature: str) -> bool:
        """Whether `feature` is there, natively or emulated."""
        return feature in self._cells and self._cells[feature].available

    def require(self, feature: str) -> Capability:
        """Return the cell of `feature`; raise `UnsupportedError` with the table's reason where it is unsupported."""
        cell = self._cells.get(feature, unsupported("the backend's capability table does not list it"))
        if not cell.available:
            raise UnsupportedError(f"{feature} is unsupported on backend {self.backend!r}: {cell.why}")
        return cell
