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


_UNITS = {"fp32": 2**-24, "tf32": 2**-11, "hf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8}
# ResNet-18 and ResNet-50 on small images: an fp32 run is 1 to 8 units from an fp64 one at its first loss, and each step
# under BatchNorm multiplies that by 10 to 50, whatever the backend, until runs are as far apart as steps are.
_FIRST, _GROWTH, _MOST = 64, 64, 0.25


@dataclass(frozen=True)
class Parity:
    """The loss curve of `entry` against that of `baseline`. Differences are relative to the baseline's loss."""

    entry: Entry
    baseline: Entry
    points: int  # steps at which both curves have a finite loss
    largest: float
    at: int  # the step of the largest difference
    last: float  # the difference at the last common step
    parts: int | None  # the first step that is further apart than rounding explains; None: there is none

    @property
    def words(self) -> dict[str, str]:
        """Who is compared and how far apart they are, by column title."""
        return {
            "run": _who(self.entry),
            "against": _who(self.baseline),
            "common points": str(self.points),
            "largest difference": f"{self.largest:.2%} at step {self.at}",
            "at the last": f"{self.last:.2%}",
            "verdict": self.verdict,
        }

    @property
    def verdict(self) -> str:
        """What the differences mean."""
        if self.largest == 0:
            return "equal to the last bit"
        if self.parts is None:
            return "agree: no further apart than rounding explains"
        return f"other mathematics or other data: apart from step {self.parts} on by more than rounding explains"


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
    unit = max(_rounding(entry), _rounding(baseline))
    parts = next((step for difference, step in apart if difference > allowed(step, unit)), None)
    return Parity(entry, baseline, len(pairs), largest, at, apart[-1][0], parts)


def allowed(step: int, unit: float) -> float:
    """How far apart rounding by `unit`, the arithmetic's, may bring two losses at a step counted from 1."""
    return float(min(_MOST, _FIRST * unit * _GROWTH ** min(step - 1, 60)))


def _rounding(entry: Entry) -> float:
    """The unit roundoff of what matrix products were computed in; where a record does not say, of its policy."""
    numerics = entry.record.numerics
    return _UNITS.get(str(numerics.in_force.get("arithmetic"))) or _UNITS.get(numerics.policy, _UNITS["bf16"])


def _who(entry: Entry) -> str:
    return f"{entry.tag} {entry.hardware} ({entry.record.backend.name}, {entry.record.origin})"
