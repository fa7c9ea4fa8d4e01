"""How many loader workers, and pinned memory or not: tried on this machine after the run, not guessed.

Each way trains some steps with the model of the run. They are not timed one by one: a step may be computed while the
next batch is loaded, as in training. The way advised is the one with the fewest workers that comes within NEAR of the
fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from accel._threads import available_cores
from accel.records import Figure, InputAdvice, InputTrial

if TYPE_CHECKING:
    from accel.bench._train import Trainer
    from accel.session import Session

NEAR = 0.97
LIMITS = 0.1  # share of the time spent waiting for data from which the input is said to set the pace
_STEPS, _WARM = 6, 2


def counts(cores: int) -> list[int]:
    """Worker counts to try on `cores` cores of a rank: 0, 1, 2, 4, ... and all of them."""
    doubled = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [0, *doubled, cores]


def cores_of_a_rank(session: Session) -> int:
    """Cores that this host gives each of its ranks."""
    return max(1, available_cores() // session.local_world_size)


def unknown(why: str) -> InputAdvice:
    """No advice, and why."""
    return InputAdvice((), Figure(None, "workers", reason=why), None, f"nothing was tried: {why}")


def tune(session: Session, trainer: Trainer, loader: Callable[[int, bool], Any]) -> InputAdvice:
    """Try ways to load data; `loader(workers, pinned)` makes one. Every rank must call it."""
    offered = session.backend.capabilities().offers("memory.pinned")
    cores = int(min(session.backend.collective.all_gather_object(cores_of_a_rank(session))))
    trials = [_trial(session, trainer, loader, workers, offered) for workers in counts(cores)]
    why = None
    if offered:
        best = chosen(trials)
        trials.append(_trial(session, trainer, loader, int(best.workers.value or 0), False))
    else:
        cell = session.backend.capabilities().get("memory.pinned")
        why = cell.why if cell else "the backend has no pinned memory"
    return advice(trials, why)


def _trial(
    session: Session, trainer: Trainer, loader: Callable[[int, bool], Any], workers: int, pinned: bool
) -> InputTrial:
    windows = trainer.windows(session.meter(), loader=loader(workers, pinned))
    # Batches that workers made ahead while nobody took them would flatter them: as many are taken first as there are.
    for _ in range(max(_WARM, 2 * workers)):
        next(windows)
    session.barrier()
    session.lap()
    images = _taken(windows, max(_STEPS, 2 * workers))
    lap = session.lap()
    windows.close()
    ranks = session.backend.collective.all_gather_object([images, lap.seconds, lap.data_seconds])
    return InputTrial(
        workers=Figure(workers, "workers"),
        pinned=pinned,
        throughput=Figure(sum(rank[0] for rank in ranks) / max(rank[1] for rank in ranks), "images/s"),
        data_share=Figure(max(min(1.0, rank[2] / rank[1]) for rank in ranks), "fraction"),
    )


def _taken(windows: Iterator[int], steps: int) -> int:
    return sum(next(windows) for _ in range(steps))


def _rate(trial: InputTrial) -> float:
    assert trial.throughput.value is not None
    return float(trial.throughput.value)


def chosen(trials: Sequence[InputTrial]) -> InputTrial:
    """The trial with the fewest workers that comes near the fastest; of equals, the faster."""
    fastest = max(map(_rate, trials))
    near = [trial for trial in trials if _rate(trial) >= NEAR * fastest]
    return min(near, key=lambda trial: (trial.workers.value or 0, -_rate(trial)))


def advice(trials: Sequence[InputTrial], why_not_pinned: str | None) -> InputAdvice:
    """What to use, and why, from what was tried; `why_not_pinned` where the backend has no pinned memory."""
    best, least = chosen(trials), trials[0]
    share = best.data_share.value or 0.0
    words = [f"use --workers {best.workers.value}"]
    if why_not_pinned is None:
        words[0] += " --pin" if best.pinned else " --no-pin"
    words.append(f"{_rate(best):.4g} images/s, {share:.0%} of the time spent waiting for data")
    if best is not least:
        waited = least.data_share.value or 0.0
        words.append(f"without workers {_rate(least):.4g} images/s, {waited:.0%} waiting")
    fastest = max(trials, key=_rate)
    if fastest is not best:
        words.append(f"{fastest.workers.words()} give {_rate(fastest) / _rate(best) - 1:.1%} more, which is noise")
    if share > LIMITS:
        words.append("the input still sets the pace: more cores, smaller files or faster storage would help")
    if why_not_pinned is not None:
        words.append(f"memory cannot be pinned ({why_not_pinned})")
    return InputAdvice(tuple(trials), best.workers, best.pinned, "; ".join(words))
