"""Which allocator a plan is made for: one that was given, that of a backend by name, or that of a chip's backend."""

from __future__ import annotations

from accel import registry
from accel.allocator import EXACT, Allocator, PlansMemory
from accel.chips import Chip
from accel.errors import ArgumentError


def chosen(wanted: str | Allocator | None, chip: Chip | None) -> Allocator:
    """The allocator `wanted`, or that of `chip`'s backend, or no rounding. Raises `ArgumentError` for an unknown
    name.
    """
    if isinstance(wanted, Allocator):
        return wanted
    specs = [spec for spec in registry.specs() if isinstance(spec, PlansMemory)]
    if wanted is None:
        mine = [spec for spec in specs if chip is not None and spec.vendor == chip.vendor]
        return mine[0].allocator() if mine else EXACT
    known = {spec.name: spec for spec in specs}
    if wanted in known:
        return known[wanted].allocator()
    if wanted != EXACT.name:
        raise ArgumentError(f"allocator is {wanted!r}; expected one of {', '.join(sorted([EXACT.name, *known]))}")
    return EXACT
