"""`find_batch_size`: the largest batch whose training step fits into memory, found by trying.

Owns the search, what a trial is, and the agreement between ranks; that a trial leaves no trace in a session is
`accel._rehearsal`.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from accel import rendezvous
from accel._rehearsal import Rehearsal
from accel._search import largest
from accel.backend import Backend
from accel.errors import ArgumentError, BatchSizeError, CollectiveError, UnsupportedError
from accel.memory import Tracked
from accel.registry import get_backend
from accel.session import Session

log = logging.getLogger("accel")

MOST = 2**20  # where the search ends by itself
SHARE = 0.8  # of the free memory, shared by the ranks of a host, where nothing but the system would stop a step
CLOSE = 1.02  # a forecast this near to the budget is tried all the same

FITS, SHORT, OVER, FORECAST = "fits", "out of memory", "over the budget", "forecast over the budget"


class Trial(NamedTuple):
    """One batch that was tried. Bytes are those of the rank with most; None where the device cannot say."""

    batch: int
    outcome: str  # "fits", "out of memory", "over the budget", or "forecast over the budget": not run
    peak: int | None  # of live tensors
    peak_reserved: int | None  # held by the allocator
    note: str  # the first line of the error, and the rank it came from


@dataclass(frozen=True)
class BatchSize:
    """The largest batch that fits, and the memory curve: every batch that was tried, in order."""

    batch: int
    too_large: int | None  # the smallest that does not fit; None where the search ended at `most`
    trials: tuple[Trial, ...]

    @property
    def curve(self) -> list[tuple[int, int | None]]:
        """(batch, peak bytes of live tensors) of those that fit, by batch."""
        return sorted({trial.batch: trial.peak for trial in self.trials if trial.outcome == FITS}.items())


def find_batch_size(
    step: Callable[[int], object],
    start: int = 1,
    *,
    session: Session | None = None,
    least: int = 1,
    most: int | None = None,
    budget: int | None = None,
    repeats: int = 2,
) -> BatchSize:
    """The largest batch from `least` to `most` whose training step fits, exactly, on every rank.

    `step(batch)` makes one optimizer step at `batch`, through `session` where there is one; it must not communicate in
    other ways. Each batch is tried `repeats` times, the first of which makes the optimizer's state, from the state that
    the session had: afterwards parameters, buffers, optimizer state, loss scale and random state are as before, and
    the allocator's cache is empty. Move schedulers elsewhere. Without a session (one process only) what `step` trains
    stays trained.

    `budget`: bytes that a step may take; None: what the device has. On a backend where nothing would stop a step but
    the operating system (`memory.oom` in the capability table) it is 80 % of the free memory, and a batch that the
    curve foretells to be above it is not run.

    Every rank must call it with the same numbers. Raises `ArgumentError` for an empty range, `BatchSizeError` with the
    history where not even `least` fits, and whatever `step` raises for another reason than memory, untried again;
    Python's own `MemoryError` too. Other ranks then raise `CollectiveError`.
    """
    backend = get_backend() if session is None else session.backend
    _check(session, start, least, most, budget, repeats)
    offers = backend.capabilities().offers
    guarded = not offers("memory.oom")
    if guarded and not offers("memory.track") and most is None:
        raise UnsupportedError(
            f"find_batch_size() on backend {backend.name!r}: it has no memory figures and reports no lack of memory, "
            "so nothing would end the search; give most="
        )
    if guarded and budget is None and offers("memory.track"):
        free = backend.memory.stats().free
        budget = None if free is None else int(SHARE * free / (1 if session is None else session.local_world_size))
    search = _Search(step, backend, session, budget, guarded, repeats)
    try:
        if search.rehearsal is not None and search.rehearsal.warms:
            search.warm_up(start)
        found = largest(search.fits, start, least=least, most=MOST if most is None else most)
    finally:
        search.end()
    if found.good is None:
        raise BatchSizeError(f"find_batch_size(): not even a batch of {least} fits; {_history(search.trials)}")
    return BatchSize(found.good, found.bad, tuple(search.trials))


class _Search:
    """Tries batches; every rank makes the same trials and gets the same answers."""

    def __init__(
        self,
        step: Callable[[int], object],
        backend: Backend,
        session: Session | None,
        budget: int | None,
        guarded: bool,
        repeats: int,
    ) -> None:
        self._step = step
        self._backend = backend
        self._session = session
        self._budget = budget
        self._guarded = guarded and budget is not None
        self._repeats = repeats
        self.rehearsal = None if session is None else Rehearsal(session)
        self._warm: int | None = None  # a batch that lets DDP make its buckets
        self._communicated = False  # the trial got as far as a step that communicates
        self.trials: list[Trial] = []
        self._clean(collect=True)

    def fits(self, batch: int) -> bool:
        if self._guarded and not self._safe(batch):
            self._note(Trial(batch, FORECAST, None, None, "by the two batches below it"))
            return False
        return self._try(batch)

    def warm_up(self, start: int) -> None:
        """Let DDP make its final buckets, at a batch that fits beside its first ones: from an eighth of `start` down,
        but not from 1, which BatchNorm may refuse.
        """
        batch = max(min(2, start), start // 8)
        while not self._try(batch):
            if batch == 1:
                raise BatchSizeError(f"find_batch_size(): not even a batch of 1 fits; {_history(self.trials)}")
            batch //= 2
        self._warm = batch
        self.trials.clear()

    def end(self) -> None:
        """Put the session back and leave nothing in the allocator's cache."""
        if self.rehearsal is not None:
            self.rehearsal.end()
        self._clean(collect=True)

    def _try(self, batch: int) -> bool:
        tracked, note, failure = self._run(batch)
        self._clean(collect=bool(note))  # outside the handler, whose error holds what the failed step made (T49)
        mine: dict[str, Any] = {
            "note": note,
            "communicated": self._communicated,
            "failure": None if failure is None else f"{type(failure).__name__}: {failure}",
            "peaks": [tracked.peak, tracked.peak_reserved],
        }
        ranks = [mine] if self._session is None else self._session._control.all_gather_object(mine)
        if failure is not None:
            raise failure
        for rank, theirs in enumerate(ranks):
            if theirs["failure"] is not None:
                raise CollectiveError(f"find_batch_size(): step({batch}) failed on rank {rank}: {theirs['failure']}")
        peak, reserved = (_most([theirs["peaks"][kind] for theirs in ranks]) for kind in range(2))
        short = [f"rank {rank}: {theirs['note']}" for rank, theirs in enumerate(ranks) if theirs["note"]]
        if short:
            if self.rehearsal is not None and any(theirs["communicated"] for theirs in ranks):
                self._recover(self.rehearsal)
            self._note(Trial(batch, SHORT, peak, reserved, short[0]))
            return False
        taken = peak if self._guarded or reserved is None else reserved
        if self._budget is not None and taken is not None and taken > self._budget:
            self._note(Trial(batch, OVER, peak, reserved, f"{taken:,} bytes of {self._budget:,}"))
            return False
        self._note(Trial(batch, FITS, peak, reserved, ""))
        return True

    def _recover(self, rehearsal: Rehearsal) -> None:
        """A step which communicates ran out of memory: its reduction is open, on every rank at the same place."""
        rehearsal.recover()
        if rehearsal.warms and self._warm is not None and not self._try(self._warm):
            raise BatchSizeError(f"find_batch_size(): {self._warm} no longer fits; {_history(self.trials)}")
        if self._warm is not None:
            self.trials.pop()

    def _run(self, batch: int) -> tuple[Tracked, str, Exception | None]:
        """One trial on this rank: what it took, the words of a lack of memory, and any other error."""
        note, failure = "", None
        self._communicated = False
        with self._backend.memory.track() as tracked:
            try:
                self._steps(batch)
                self._backend.device.flush()
                self._backend.device.synchronize()
            except Exception as error:
                if self._backend.memory.is_oom(error) and not isinstance(error, MemoryError):
                    note = (str(error).strip().splitlines() or [type(error).__name__])[0]
                    traceback.clear_frames(error.__traceback__)  # whoever else keeps the error keeps no tensors
                else:
                    failure = error
        return tracked, note, failure

    def _steps(self, batch: int) -> None:
        rehearsal = self.rehearsal
        if rehearsal is None:
            for _ in range(self._repeats):
                self._step(batch)
            return
        if rehearsal.dry:
            assert self._session is not None  # whose ranks they are
            failure: Exception | None = None
            try:
                for _ in range(self._repeats):
                    rehearsal.dry_step(lambda: self._step(batch))
                self._backend.device.synchronize()
            except Exception as error:
                failure = error
            if self._session._control.any(failure is not None):
                if failure is not None:
                    raise failure
                return  # another rank failed; what it says is exchanged with the outcome
            rehearsal.rewind()
            self._communicated = True
        for _ in range(self._repeats):
            rehearsal.real_step(lambda: self._step(batch))

    def _safe(self, batch: int) -> bool:
        """Whether the curve so far does not foretell that `batch` takes more than the budget."""
        assert self._budget is not None  # `_guarded`
        known = self._curve()
        if not known or batch <= known[-1][0]:
            return True
        if len(known) == 1:
            below, peak = known[0]
            if peak * batch <= self._budget * below:  # a peak grows no faster than the batch
                return True
            if not self._try(below + 1):
                return False
            if batch == below + 1:
                return True
            known = self._curve()
        (first, low), (second, high) = known[-2:]
        return high + (high - low) / (second - first) * (batch - second) <= CLOSE * self._budget

    def _curve(self) -> list[tuple[int, int]]:
        fitting = {trial.batch: trial.peak for trial in self.trials if trial.outcome == FITS}
        return sorted((batch, peak) for batch, peak in fitting.items() if peak is not None)

    def _clean(self, collect: bool) -> None:
        if self.rehearsal is not None:
            self.rehearsal.rewind()
        if collect:  # what came before the search, or a failed step, may have left cycles
            gc.collect()
        self._backend.device.synchronize()
        self._backend.memory.empty_cache()

    def _note(self, trial: Trial) -> None:
        self.trials.append(trial)
        log.info("batch %d: %s %s", trial.batch, trial.outcome, trial.note)


def _check(session: Session | None, start: int, least: int, most: int | None, budget: int | None, repeats: int) -> None:
    upper = MOST if most is None else most
    for name, value in (("start", start), ("least", least), ("most", upper), ("repeats", repeats), ("budget", budget)):
        if name == "budget" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"find_batch_size({name}={value!r}): expected an integer from 1")
    if not least <= start <= upper:
        raise ArgumentError(
            f"find_batch_size(start={start}, least={least}, most={upper}): the range is empty or start is outside it; "
            "expected least <= start <= most"
        )
    if session is None:
        place = rendezvous.read()
        if place.world_size > 1:
            raise ArgumentError(f"find_batch_size(): {place.world_size} ranks need session=, so that they agree")
        return
    numbers = [start, least, most, budget, repeats]
    everywhere = session._control.all_gather_object(numbers)
    if any(theirs != numbers for theirs in everywhere):
        raise ArgumentError(
            f"find_batch_size(): start, least, most, budget and repeats differ between ranks ({everywhere}); give the "
            "same everywhere"
        )


def _most(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _history(trials: Sequence[Trial]) -> str:
    tried = "; ".join(f"{trial.batch}: {trial.outcome} ({trial.note})" for trial in trials)
    return f"tried {tried}"
