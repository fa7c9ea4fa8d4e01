"""`batches`: the loop over a loader - on the device, one batch ahead, on the same number of steps on every rank.

Looking one batch ahead tells the window its end before the forward, so gradient sync is set in time. Ranks agree on
the number of training steps first: an extra batch on one rank would pair its gradients with another rank's next
collective (T04).
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from accel._copies import Copies, moved
from accel.backend import Backend
from accel.control import Agreement, ControlPlane
from accel.errors import ArgumentError, DataError

log = logging.getLogger("accel")

END: Any = object()
KEEP, DROP = "keep", "drop"  # what becomes of a short last batch in training
UNSHARDED = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


@dataclass
class Position:
    """Where this rank is in its training data; saved with a checkpoint, so that a resumed epoch goes on with the next
    batch.
    """

    epoch: int
    taken: int  # batches given to the user in this epoch
    committed: int  # those whose gradients went into a step: an open window is not saved, its batches come again
    finished: bool = False
    # state of the generators that decide the order, at the epoch's start
    start: dict[str, Any] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        done = self.finished and self.committed == self.taken
        return {"epoch": self.epoch, "batches": self.committed, "finished": done, "start": self.start}


class Batches:
    """Makes the iterators of one session and keeps its position, its waiting time and what it dropped."""

    def __init__(
        self,
        backend: Backend,
        control: ControlPlane,
        begin: Callable[[bool], None],
        drop: Callable[[str], None],
        saw: Callable[[Any], None] | None = None,
    ) -> None:
        self._device = backend.device
        self._lazy = backend.kind == "lazy"
        self._control = control
        self._begin = begin  # tells the session that a micro-batch starts, and whether it is the last
        self._drop = drop  # tells it that the window that is open will not be finished
        self._saw = saw  # is shown each training batch on a lazy device, which compiles once for each shape
        self.position: Position | None = None  # None until the first training pass
        self.resume: dict[str, Any] | None = None  # a loaded position that the next training pass takes up
        self.waited = 0.0  # seconds spent waiting for the loader
        self.dropped = 0  # batches that other ranks did not have, and short last ones
        self._told = False  # that a short last batch is dropped
        self._thread: tuple[ThreadPoolExecutor, Agreement] | None = None

    def train(
        self, loader: Any, epoch: int | None, skip: int, steps: int | None, prefetch: int, short: str | None
    ) -> Iterator[Any]:
        several = self._control.world_size > 1
        if several:
            _refuse_unsharded(loader, self._control.world_size)
        self._drop("a new pass over the training data began")
        saved, wanted = self._resumed(epoch)
        _set_epoch(loader, wanted)
        skip = skip if saved is None else max(skip, int(saved["batches"]))
        length = _length(loader)
        whole: Callable[[Iterator[Any]], Iterator[Any]] = _same
        last = _last_samples(loader) if short == DROP or (short is None and self._lazy) else 0
        if last is None:  # it shows when the batch is there, which ranks must then agree on one by one
            length = None if several else length
            whole = functools.partial(self._whole, limit=None if steps is None else skip + steps)
        elif last and length is not None:
            length -= 1
            if steps is None or skip + steps > length:
                self._drop_short(last, loader.batch_size)
        if saved is None:
            self.position = Position(wanted, skip, skip, start=_start_state(loader))
            source = _skipped(whole(_iterate(loader)), skip)
        else:
            self.position = Position(wanted, skip, skip, saved["finished"], saved["start"])
            if saved["finished"]:
                return iter(())
            source = _replayed(loader, saved["start"], skip, whole)
        if length is None:
            ahead = self._agreed(source, steps) if several else self._ahead(source, steps, promised=False)
            return self._run(ahead, self.position, prefetch, None if steps is None else skip + steps)
        mine = everyones = max(0, length - skip)
        limit = steps if not last else mine if steps is None else min(steps, mine)
        if several:
            everyones = self._control.min(mine)
            limit = everyones if steps is None else self._control.min(min(steps, everyones))
            self._count_dropped((mine if steps is None else min(steps, mine)) - limit)
        cut = skip + limit if limit is not None and limit < everyones else None
        return self._run(self._ahead(source, limit, promised=several), self.position, prefetch, cut)

    def evaluate(self, loader: Any, epoch: int | None, skip: int, steps: int | None) -> Iterator[Any]:
        if epoch is not None:
            _set_epoch(loader, epoch)
        source = _skipped(_iterate(loader), skip)
        move = self._move
        for batch in source if steps is None else itertools.islice(source, steps):
            yield move(batch)
            if self._lazy:
                self._device.flush()

    def _resumed(self, epoch: int | None) -> tuple[dict[str, Any] | None, int]:
        """The loaded position that this pass goes on from, if any, and the epoch of the pass."""
        saved, self.resume = self.resume, None
        if saved is None:
            following = 0 if self.position is None else self.position.epoch + 1
            return None, following if epoch is None else epoch
        if epoch is None and not saved["finished"]:
            return saved, saved["epoch"]
        if epoch is None or epoch != saved["epoch"]:
            return None, saved["epoch"] + 1 if epoch is None else epoch
        return saved, epoch

    def _run(
        self, ahead: Iterator[tuple[Any, bool]], position: Position, prefetch: int, cut: int | None
    ) -> Iterator[Any]:
        begin, saw, clock = self._begin, self._saw, time.perf_counter
        move: Callable[[Any], Any] = self._move
        if not self._device.is_host and prefetch > 1:
            ahead, move = _copied_ahead(ahead, self._device.copies(), prefetch), _same
        while True:
            before = clock()
            item = next(ahead, END)
            self.waited += clock() - before
            if item is END:
                break
            batch, final = item
            begin(final)
            position.taken += 1
            if saw is not None:
                saw(batch)
            yield move(batch)
        position.finished = position.taken != cut  # cut short by `steps`, the epoch has batches that nobody has seen
        self._drop("the loader ended")

    def _ahead(self, source: Iterator[Any], limit: int | None, promised: bool) -> Iterator[tuple[Any, bool]]:
        """Pairs (batch, final), one batch ahead of the user; never takes more than `limit` from the source."""
        taken = 0

        def fetch() -> Any:
            nonlocal taken
            if taken == limit:
                return END
            batch = next(source, END)
            if batch is END and promised:
                raise DataError(
                    f"the loader's len() promised {limit} more batches and it gave {taken}: the other ranks "
                    f"wait for the rest"
                )
            taken += 1
            return batch

        batch = fetch()
        while batch is not END:
            following = fetch()
            yield batch, following is END
            batch = following

    def _agreed(self, source: Iterator[Any], limit: int | None) -> Iterator[tuple[Any, bool]]:
        """As `_ahead`, for a loader without a length on several ranks: each batch is used only if every rank has one.

        The question runs on the control plane's own thread while the batch before is computed: two batches are in hand.
        """
        source = source if limit is None else itertools.islice(source, limit)

        thread, agreement = self._agreement()

        def fetch() -> tuple[Any, Future[int]]:
            batch = next(source, END)
            return batch, thread.submit(agreement.min, int(batch is not END))

        batch, everyone = fetch()
        following, everyone_following = fetch() if everyone.result() else (END, everyone)
        while everyone.result():
            final = not everyone_following.result()
            later = (END, everyone_following) if final else fetch()
            yield batch, final
            batch, everyone = following, everyone_following
            following, everyone_following = later
        self._count_dropped(0 if batch is END else 1)

    def _agreement(self) -> tuple[ThreadPoolExecutor, Agreement]:
        """A thread and a channel of its own to agree on; made once, by all ranks at their first loader without a
        length.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "accel-loader"), self._control.loader_agreement()
        return self._thread

    def close(self) -> None:
        """Stop the agreeing thread; it ends by itself once a question still open is answered or times out."""
        if self._thread is not None:
            thread, agreement = self._thread
            thread.submit(agreement.close)
            thread.shutdown(wait=False)
            self._thread = None

    def _whole(self, source: Iterator[Any], limit: int | None) -> Iterator[Any]:
        """At most `limit` batches of `source`, without the last one, if that is smaller than the first."""
        source = itertools.islice(source, limit)
        held = next(source, END)
        full = 0 if held is END else _samples(held)
        while held is not END:
            following = next(source, END)
            if following is END and _samples(held) < full:
                self._drop_short(_samples(held), full)
                return
            yield held
            held = following

    def _drop_short(self, samples: int, full: int) -> None:
        self.dropped += 1
        level = logging.DEBUG if self._told else logging.WARNING
        log.log(
            level,
            "the last batch, of %d samples where others have %d, is dropped in each pass: every shape of a batch is a "
            "graph of its own to compile; batches(short='keep') trains on it",
            samples, full,
        )  # fmt: skip
        self._told = True

    def _count_dropped(self, batches: int) -> None:
        if batches > 0:
            self.dropped += batches
            log.warning("%d batch(es) of rank %d are dropped: another rank has no more", batches, self._control.rank)

    def _move(self, batch: Any) -> Any:
        return batch if self._device.is_host else moved(batch, self._device.move)


def _samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of its first tensor that has one; 0 where there is none."""
    found: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.extend(tensor.shape[:1])
        return tensor

    moved(batch, note)
    return found[0] if found else 0


def _last_samples(loader: Any) -> int | None:
    """Samples of a last batch that is smaller than the others, 0 where it is not; None where only the batch tells."""
    if not isinstance(loader, DataLoader) or loader.batch_size is None or isinstance(loader.dataset, IterableDataset):
        return None
    samples = len(loader.sampler)  # type: ignore[arg-type]  # the samplers of map-style datasets have a length
    return 0 if loader.drop_last or samples <= loader.batch_size else samples % loader.batch_size


def check_arguments(train: object, epoch: object, skip: object, steps: object, prefetch: object, short: object) -> None:
    """Raise `ArgumentError` for a value of `Session.batches` that cannot be used."""
    for name, value, least, optional in (
        ("epoch", epoch, 0, True),
        ("skip", skip, 0, False),
        ("steps", steps, 1, True),
        ("prefetch", prefetch, 1, False),
    ):
        if (value is None and optional) or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            continue
        raise ArgumentError(
            f"batches({name}={value!r}): expected an integer from {least}{' or None' if optional else ''}"
        )
    if not isinstance(train, bool):
        raise ArgumentError(f"batches(train={train!r}): expected True or False")
    if short not in (None, KEEP, DROP):
        raise ArgumentError(f"batches(short={short!r}): expected {KEEP!r}, {DROP!r}, or None for the backend's default")
    if short == DROP and not train:
        raise ArgumentError(f"batches(train=False, short={DROP!r}): an evaluation sees every sample; leave `short` out")


def _copied_ahead(ahead: Iterator[tuple[Any, bool]], copies: Copies, depth: int) -> Iterator[tuple[Any, bool]]:
    """Start the copies of the next batches before the user asks for them."""
    queue = [(copies.begin(batch), final) for batch, final in itertools.islice(ahead, depth - 1)]
    for batch, final in ahead:
        queue.append((copies.begin(batch), final))
        begun, last = queue.pop(0)
        yield copies.finish(begun), last
    for begun, last in queue:
        yield copies.finish(begun), last


def _same(what: Any) -> Any:
    return what


def _iterate(loader: Any) -> Iterator[Any]:
    try:
        return iter(loader)
    except TypeError as error:
        raise ArgumentError(
            f"batches(loader={type(loader).__name__}): expected an iterable of batches, such as a DataLoader"
        ) from error


def _skipped(source: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in itertools.islice(source, count):
        pass
    return source


def _replayed(
    loader: Any, start: dict[str, Any], count: int, whole: Callable[[Iterator[Any]], Iterator[Any]]
) -> Iterator[Any]:
    """The rest of an interrupted pass: the generators that decided its order are put back for it, and taken away
    again.

    Samplers draw the order at the first batch, not at iter(): one batch more is taken before the generators change
    back.
    """
    now = torch.get_rng_state()
    torch.set_rng_state(start["torch"])
    for generator, state in zip(_generators(loader), start["loader"], strict=False):
        generator.set_state(state)
    source = _skipped(whole(_iterate(loader)), count)
    first = list(itertools.islice(source, 1))
    torch.set_rng_state(now)
    return itertools.chain(first, source)


def _samplers(loader: Any) -> list[Any]:
    """The loader and what inside it may follow the epoch."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = [
        loader,
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "dataset", None),
    ]
    return list({id(part): part for part in parts if part is not None}.values())


def _length(loader: Any) -> int | None:
    """Batches that `loader` promises; None for a stream, also for a DataLoader over one, which has a `__len__` that
    raises.
    """
    try:
        return len(loader)
    except TypeError:
        return None


def _set_epoch(loader: Any, epoch: int) -> None:
    for part in _samplers(loader):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def _generators(loader: Any) -> list[torch.Generator]:
    found = [getattr(part, "generator", None) for part in _samplers(loader)]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _start_state(loader: Any) -> dict[str, Any]:
    return {"torch": torch.get_rng_state(), "loader": [g.get_state() for g in _generators(loader)]}


def _refuse_unsharded(loader: Any, world_size: int) -> None:
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, UNSHARDED):
        raise ArgumentError(
            f"batches(loader): its sampler is {type(sampler).__name__}, so each of the {world_size} ranks would train "
            "on the whole dataset; build it with DataLoader(dataset, sampler=session.sampler(dataset), ...)"
        )
