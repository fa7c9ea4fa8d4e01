"""Ranks and calls in words, as errors and reports say them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def named(ranks: Sequence[int]) -> str:
    """`ranks` in words."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in ranks)


def differ(number: int, group: str, sides: Mapping[str, Sequence[int]]) -> str:
    """What each rank issued as collective `number`."""
    shown = "; ".join(f"{named(ranks)}: {words}" for words, ranks in sides.items())
    return f"ranks issued different collectives as number {number} of group {group!r}: {shown}"


def told(state: Mapping[str, Any] | None) -> str:
    """A call that a rank is in or was last in, as `accel._flight.entry_state` gives it."""
    if state is None:
        return "no collective yet"
    number = f" number {state['number']}" if state["number"] else ""
    over = "" if state["open"] else ", which it had finished"
    return f"{state['call']}{number} of group {state['group']!r} at {state['site']}{over}"
