"""Loss parity: whether runs of the same work learn alike, step by step, whatever ran them.

A loss is mathematics and no figure of a chip, so it may be set beside that of another origin, which the ratios of
`_groups` never do; both origins are named. Work is the same where all fields of a group but its origin are, and the
seed and the repeats, on which batches and schedule depend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel.compare._groups import Entry


@dataclass(frozen=True)
class Parity:
    """The loss curve of `entry` against that of `baseline`. Differences are relative to the baseline's loss."""

    entry: Entry
    baseline: Entry
    points: int  # steps at which both curves have a finite loss
    largest: float
    at: int  # the step of the largest difference
    last: float  # the difference at the last common step

    @property
    def words(self) -> dict[str, str]:
        """Who is compared and how far apart they are, by column title."""
        return {
            "run": _who(self.entry),
            "against": _who(self.baseline),
            "common points": str(self.points),
            "largest difference": f"{self.largest:.2%} at step {self.at}",
            "at the last": f"{self.last:.2%}",
        }


def parities(entries: Sequence[Entry], key: Callable[[Entry], tuple[str, ...]]) -> list[Parity]:
    """Each run against the first one of the same work (`key`) whose curve has steps in common with it."""
    first: dict[tuple[str, ...], Entry] = {}
    found = []
    for entry in entries:
        baseline = first.setdefault(key(entry), entry)
        if baseline is entry:
            continue
        parity = _parity(entry, baseline)
        if parity is not None:
            found.append(parity)
    return found


def _parity(entry: Entry, baseline: Entry) -> Parity | None:
    base = {step: value for step, value in baseline.record.results.loss_curve.points if value}
    pairs = [(s, v, base[s]) for s, v in entry.record.results.loss_curve.points if v is not None and s in base]
    if not pairs:
        return None
    apart = [(abs(value - other) / abs(other), step) for step, value, other in pairs]
    largest, at = max(apart)
    return Parity(entry, baseline, len(pairs), largest, at, apart[-1][0])


def _who(entry: Entry) -> str:
    return f"{entry.tag} {entry.hardware} ({entry.record.backend.name}, {entry.record.origin})"
