"""Names of TPU topologies such as "v5e:2x2": what they may look like, and the nearest one to a name that is none.

Owns what can be said without libtpu. Whether libtpu can compile for a name of the right form is its own answer.
"""

from __future__ import annotations

import difflib
import math
import re
from typing import NamedTuple

from accel.errors import ArgumentError


class Family(NamedTuple):
    """One generation of TPUs."""

    dimensions: int  # of its slices
    most: int  # chips of the largest slice
    common: tuple[str, ...]  # slices that can be rented, and the single chip, which libtpu compiles for as well
    chip_config: str | None = None  # libtpu's name for how the cores of a chip are used; None: its default


_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBE = ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16")

# Slices and sizes: https://cloud.google.com/tpu/docs/v2, /v3, /v4, /v5e, /v5p, /v6e and /tpu7x.
FAMILIES = {
    "v2": Family(2, 256, ("1x1", "2x2", "4x4", "8x8", "8x16", "16x16")),
    "v3": Family(2, 1024, ("1x1", "2x2", "4x4", "8x8", "8x16", "16x16", "16x32", "32x32")),
    # A v4 chip is one device to PJRT (its two cores are a "megacore"); libtpu's topology says two unless told so.
    "v4": Family(3, 4096, _CUBE, "megacore"),
    "v5e": Family(2, 256, _FLAT),
    "v5p": Family(3, 8960, _CUBE),
    "v6e": Family(2, 256, _FLAT),
    "tpu7x": Family(3, 9216, _CUBE),
}
SYNONYMS = {
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "v5": "v5p",
    "v6": "v6e",
    "v7": "tpu7x",
    "v7x": "tpu7x",
    "tpu7": "tpu7x",
}


def family(name: str) -> Family:
    """The family of a topology name that `check` let pass."""
    return FAMILIES[name.partition(":")[0]]


def check(name: str) -> str:
    """`name` when it has the form of a topology. Raises `ArgumentError` that suggests the nearest one that exists."""
    found = re.fullmatch(r"([a-z0-9]+):(\d+(?:x\d+)*)", name)
    if found is None or found[1] not in FAMILIES:
        raise refusal(name, "expected FAMILY:SHAPE")
    kind = FAMILIES[found[1]]
    sides = [int(side) for side in found[2].split("x")]
    if len(sides) != kind.dimensions:
        raise refusal(name, f"{found[1]} slices have {kind.dimensions} dimensions")
    if not 1 <= math.prod(sides) <= kind.most:
        raise refusal(name, f"{found[1]} slices have 1 to {kind.most:,} chips")
    return name


def refusal(name: str, why: str) -> ArgumentError:
    """The error for a topology that does not exist."""
    kinds = ", ".join(FAMILIES)
    return ArgumentError(f"topology {name!r} does not exist: {why}; did you mean {nearest(name)!r}? Families: {kinds}")


def nearest(name: str) -> str:
    """The common topology that is closest to `name`: its family by spelling, its shape by spelling, then by size."""
    given, _, shape = name.strip().lower().partition(":")
    known = SYNONYMS.get(given) or next(iter(difflib.get_close_matches(given, FAMILIES, n=1, cutoff=0.5)), "v5e")
    common = FAMILIES[known].common
    sides = [int(side) for side in re.findall(r"\d+", shape)]
    chips = max(1, math.prod(sides)) if sides else 1
    close = min(
        common,
        key=lambda other: (
            abs(math.log(_chips(other) / chips)),
            -difflib.SequenceMatcher(None, other, shape).ratio(),
        ),
    )
    return f"{known}:{close}"


def _chips(shape: str) -> int:
    return math.prod(int(side) for side in shape.split("x"))
