"""Two traces side by side: do they agree, within which tolerance, and where do they part first?

Each step is walked in the order in which it was computed: the data, the forward calls, the loss, the gradients from
the last layer back, scale and learning rates, the updates. What is compared may differ by its own rounding and by
`AMPLIFY` times what differed before it (`_tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from accel.errors import ParityError
from accel.parity import _tolerance as tolerance
from accel.parity._difference import apart, ratio
from accel.parity._finding import DIRECTIONS, Finding
from accel.parity._trace import Layer, State, Trace
from accel.parity._walk import Walk, by_list

SAME_RANKS = (
    1e-6  # reduced gradients and states are the same bits on all ranks of most fabrics, and nearly on the others
)


@dataclass
class Curve:
    """Of one direction, over the steps: the difference that comes nearest to its tolerance, and that tolerance.

    The largest difference says little: a gradient that cancels out is all rounding, and allowed to be.
    """

    differences: list[float] = field(default_factory=list)
    allowed: list[float] = field(default_factory=list)

    @property
    def nearest(self) -> int | None:
        """Index of the step that comes nearest to its tolerance; None without a step."""
        pairs = list(zip(self.differences, self.allowed, strict=True))
        return max(range(len(pairs)), key=lambda step: _share(pairs[step])) if pairs else None


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `finding` is None where the runs agree."""

    a: Trace
    b: Trace
    finding: Finding | None
    curves: dict[str, Curve]  # by direction: "forward", "backward", "update"
    blind_from: int | None  # first step in which rounding has grown so far that nothing can be told
    notes: tuple[str, ...]

    @property
    def agree(self) -> bool:
        return self.finding is None

    @property
    def verdict(self) -> str:
        """One or two sentences."""
        if self.finding is not None:
            return f"they part at {self.finding.words}"
        parts = []
        for direction, curve in self.curves.items():
            at = curve.nearest
            if at is not None:
                parts.append(
                    f"{direction} {curve.differences[at]:.2g} at step {at + 1} (allowed there {curve.allowed[at]:.2g})"
                )
        said = f"they agree within the tolerance of {self._dtype}: nearest to it come {', '.join(parts)}"
        if self.blind_from is not None:
            said += (
                f". From step {self.blind_from} on, rounding has grown past {tolerance.BLIND:g} and says nothing of "
                "single layers"
            )
        return said

    @property
    def _dtype(self) -> str:
        policies = dict.fromkeys((self.a.run["numerics"]["policy"], self.b.run["numerics"]["policy"]))
        return " and ".join(policies)


def compare(a: Trace, b: Trace, steps: int | None = None) -> Comparison:
    """Compare `b` with `a`, over the first `steps` steps, or all.

    Raises `ParityError` for traces of other models, other data, another number of steps or ranks, and for a first loss
    that is not finite.
    """
    steps = _check(a, b, steps)
    found: list[Finding] = []
    walks = []
    for rank in range(len(a.ranks)):
        walk = Walk(a, b, rank)
        for step in range(steps):
            walk.take(step)
        walks.append(walk)
        found += walk.findings[:1]
    found += _unlike_ranks(a, steps) + _unlike_ranks(b, steps)
    found.sort(key=lambda one: (one.step, DIRECTIONS.index(one.direction)))
    curves = {}
    for direction in ("forward", "backward", "update"):
        curve = Curve()
        for step in range(steps):
            seen = [pair for walk in walks for pair in walk.seen[direction][step]]
            difference, allowed = max(seen, key=_share, default=(0.0, 0.0))
            curve.differences.append(difference)
            curve.allowed.append(allowed)
        curves[direction] = curve
    grown = [step for step in range(steps) if max(walk.grown[step] for walk in walks) > tolerance.BLIND]
    return Comparison(a, b, found[0] if found else None, curves, grown[0] + 1 if grown else None, tuple(_notes(a, b)))


def _share(pair: tuple[float, float]) -> tuple[float, float]:
    """A difference as a share of what is allowed; of equal ones that with the least allowed comes first."""
    difference, allowed = pair
    return ratio(difference, allowed), -allowed


def _check(a: Trace, b: Trace, steps: int | None) -> int:
    """The steps to compare, once it is sure that the two can be compared."""
    if a.run["models"] != b.run["models"]:
        raise ParityError(f"{a.path} is of the model {a.run['models']}, {b.path} of {b.run['models']}")
    named: tuple[tuple[str, tuple[Layer | State, ...], tuple[Layer | State, ...]], ...] = (
        ("layer", a.layers, b.layers),
        ("parameter", a.states, b.states),
    )
    for word, ours, theirs in named:
        for one, other in zip(ours, theirs, strict=False):
            if (one.name, one.shape) != (other.name, other.shape):
                raise ParityError(
                    f"the traces are of other models or batches: {a.path} has {word} {one.name!r} of shape "
                    f"{one.shape} where {b.path} has {other.name!r} of shape {other.shape}"
                )
        if len(ours) != len(theirs):
            more, longer = (a.path, ours) if len(ours) > len(theirs) else (b.path, theirs)
            extra = longer[min(len(ours), len(theirs))].name
            raise ParityError(f"the traces are of other models: only {more} has {word} {extra!r}")
    if len(a.ranks) != len(b.ranks):
        raise ParityError(f"{a.path} was recorded on {len(a.ranks)} rank(s), {b.path} on {len(b.ranks)}")
    if steps is None and a.steps != b.steps:
        raise ParityError(
            f"{a.path} has {a.steps} step(s), {b.path} has {b.steps}; compare the first {min(a.steps, b.steps)} with "
            f"--steps {min(a.steps, b.steps)}"
        )
    if steps is not None and not 1 <= steps <= min(a.steps, b.steps):
        raise ParityError(f"--steps {steps}: expected from 1 to {min(a.steps, b.steps)}, the steps of both traces")
    for trace in (a, b):
        for rank, arrays in enumerate(trace.ranks):
            if not math.isfinite(float(arrays["loss"][0])):
                raise ParityError(
                    f"{trace.path}: the loss of the first step is {float(arrays['loss'][0])} on rank {rank}; there is "
                    "nothing to compare"
                )
    _check_data(a, b)
    return steps or a.steps


def _check_data(a: Trace, b: Trace) -> None:
    """Other data cannot be compared; the same data in another order is a finding."""
    for rank, (ours, theirs) in enumerate(zip(a.ranks, b.ranks, strict=True)):
        mine, other = ours["inputs"], theirs["inputs"]
        if not mine.size or not other.size or _close(mine[0], other[0]):
            continue
        if not np.isin(np.round(mine[~np.isnan(mine)], 9), np.round(other[~np.isnan(other)], 9)).any():
            raise ParityError(
                f"the traces are of other data: rank {rank} of {a.path} and of {b.path} have no sample in common. "
                "Record both with the same data set, and long enough that the same samples come"
            )


def _close(mine: np.ndarray, other: np.ndarray) -> bool:
    return mine.shape == other.shape and bool(np.allclose(mine, other, rtol=1e-6, atol=1e-6, equal_nan=True))


def _unlike_ranks(trace: Trace, steps: int) -> list[Finding]:
    """The first place where ranks of one run hold other gradients or parameters than rank 0."""
    first = trace.ranks[0]
    for step in range(steps):
        for direction, array, at in (("backward", "gradient", step), ("update", "state", step + 1)):
            for rank, arrays in enumerate(trace.ranks[1:], 1):
                distance = apart(first[array][at], arrays[array][at])
                size = np.nan_to_num(first[array][at][:, 0])
                for index, state in reversed(list(enumerate(trace.states))):
                    if not state.buffer and distance[index] > SAME_RANKS * size[index]:
                        return [_unlike(trace, step, direction, state.name, rank, distance[index] / size[index])]
    return []


def _unlike(trace: Trace, step: int, direction: str, name: str, rank: int, difference: float) -> Finding:
    what = "gradient" if direction == "backward" else "value"
    return Finding(
        step + 1, direction, name, "", rank, float(difference), SAME_RANKS,
        f"in {trace.path}, the {what} on rank {rank} is not that of rank 0 (difference {difference:.2g})",
        "Its gradient is not reduced over the ranks",
    )  # fmt: skip


def _notes(a: Trace, b: Trace) -> Iterator[str]:
    """What differs between the runs and is no fault by itself."""
    for name in ("policy", "arithmetic"):
        ours, theirs = a.run["numerics"].get(name), b.run["numerics"].get(name)
        if ours != theirs:
            yield f"{name}: {ours} and {theirs}"
    other = [
        (one.name, one.dtype, two.dtype)
        for one, two in zip(a.layers, b.layers, strict=True)
        if one.dtype != two.dtype and by_list(a, b, one)
    ]
    if other:
        name, ours, theirs = other[0]
        yield (
            f"the output of {name}, and of {len(other) - 1} other BatchNorm(s), is {ours} and {theirs}, as autocast "
            "lists of the backends or its inputs have it"
        )
    for name in ("seed", "accumulate", "optimizers"):
        if a.run[name] != b.run[name]:
            yield f"{name}: {a.run[name]} and {b.run[name]}"
