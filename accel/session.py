"""`Session`: what a training script talks to - a facade over small private modules, one instance a process or thread.

It owns the order of calls and nothing else: the window is `_window`, the end of a window `_boundary`, gradient sync
`_gradsync`, the loop over data `_loader`, checkpoints `_persist`, preparation `_prepare`. The hot
path (`autocast`, `backward`, `step`) wraps neither the model nor the optimizer nor the loader.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn

from accel import _checkpoint, _loader, _prepare
from accel._boundary import INSIDE_WINDOW, Boundary, StepResult
from accel._cuts import Cuts
from accel._gradsync import BUFFER_POLICIES, GradSync
from accel._masks import Masks
from accel._meter import Meter
from accel._persist import Persistence
from accel._sampler import ShardedSampler
from accel._start import Start
from accel._unwrap import unwrap
from accel._window import Window, parameters_of
from accel.errors import AccelError, ArgumentError, WindowError

__all__ = ["Lap", "Session", "StepResult"]

log = logging.getLogger("accel")


class Lap(NamedTuple):
    """Since the previous lap: micro-batches done, wall seconds over a synchronized device, seconds spent waiting for
    data.
    """

    steps: int
    seconds: float
    data_seconds: float


class Session:
    """One training run on one backend; made by `accel.init`, used as a context manager."""

    def __init__(self, start: Start) -> None:
        self.backend = start.backend
        self.device: torch.device = start.backend.device.torch_device
        self.rank, self.world_size = start.place.rank, start.place.world_size
        self.local_rank, self.local_world_size = start.local_rank, start.local_world_size
        self.is_main = self.rank == 0
        self.threads = start.threads
        self._seed = start.seed
        self._control = start.control
        self._scaler = start.scaler
        self._sync: GradSync = start.sync
        self._alone = self.world_size == 1
        self._window = Window(start.accumulate)
        self._names: dict[int, str] = {}
        self._models: list[nn.Module] = []
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        run = start.backend.device.flush if self._alone else start.sync.cut
        self._cuts = Cuts(start.backend.device, run, alone=self._alone) if start.backend.kind == "lazy" else None
        self._boundary = Boundary(
            start.backend,
            self._window,
            self._sync,
            self._scaler,
            start.clip_norm,
            self._names,
            self._optimizers,
            self._cuts,
        )
        saw = None if self._cuts is None else self._cuts.saw
        self._batches = _loader.Batches(start.backend, start.control, self._begin, self._drop_window, saw)
        self._masks = Masks(start.seed, self.rank, start.backend.device.move)
        self._persistence = Persistence(start, self._batches, self._boundary, self._masks)
        self.autocast = start.backend.precision.autocast  # only casts; bound here, since it is on the hot path
        self._micro_batches = 0
        self._lap = (0, time.perf_counter(), 0.0)
        self.dropped_windows = 0
        self._closed = False

    # -- setting up ------------------------------------------------------------------------------------------------

    @property
    def accumulate(self) -> int:
        """Micro-batches of one optimizer step; settable between windows."""
        return self._window.accumulate

    @accumulate.setter
    def accumulate(self, value: int) -> None:
        self._window.accumulate = value
        self._sync.arm(self._window.last)

    @property
    def dropped_batches(self) -> int:
        """Training batches of this rank that were not used: another rank had no more (of a loader without a length,
        those that were fetched already), or the last one was short and `batches` dropped it.
        """
        return self._batches.dropped

    def prepare(
        self,
        model: nn.Module,
        *optimizers: torch.optim.Optimizer,
        compile: bool = False,  # noqa: A002 - torch's word for it
        sync_batchnorm: bool = False,
        buffers: str = "rank0",
        unused_parameters: bool = False,
        channels_last: bool | None = None,
        host_dropout: bool = False,
    ) -> Any:
        """Check, place and wrap `model` and its optimizers; returns what to call from now on.

        A model alone comes back alone, otherwise as a tuple `(model, *optimizers)`. Parameters and buffers become
        those of rank 0 on every rank. `buffers` says whose BatchNorm statistics hold after each window: "rank0",
        "mean" (of floating-point ones) or "local". `channels_last` is the memory layout of convolutions; None takes it
        where the backend is faster with it, and contiguous where the device knows no other. `host_dropout` draws the
        masks of nn.Dropout modules on the host: the same on every backend for one seed, others on each rank. Raises
        `ModelError` for parameters in half precision, on several devices or of another model.
        """
        if self._closed:
            raise _closed("prepare")
        if buffers not in BUFFER_POLICIES:
            raise ArgumentError(f"prepare(buffers={buffers!r}): expected one of {', '.join(BUFFER_POLICIES)}")
        _prepare.check(model, optimizers)
        if any(unwrap(model) is unwrap(known) for known in self._models):
            raise ArgumentError("prepare(model): it is prepared already; use what the first call returned")
        if sync_batchnorm and not self._alone:
            self.backend.capabilities().require("prepare.sync_batchnorm")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if compile:
            self.backend.capabilities().require("prepare.compile")
        if host_dropout:
            self._masks.install(model)
        _prepare.place(model, optimizers, self.device, _prepare.layout(model, channels_last, self.backend))
        self.backend.precision.adapt(model)
        self._names.update({id(parameter): name for name, parameter in model.named_parameters()})
        called: Any = torch.compile(model) if compile else model
        called = self._sync.wrap(called, buffers=buffers, unused_parameters=unused_parameters)
        self._models.append(called)
        self._optimizers.update({id(optimizer): optimizer for optimizer in optimizers})
        self._sync.arm(self._window.last)
        return (called, *optimizers) if optimizers else called

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's own module, under DDP and torch.compile."""
        return unwrap(model)

    def sampler(self, dataset: Any, *, shuffle: bool = True) -> ShardedSampler:
        """This rank's share of a map-style dataset: no duplicates, lengths differ by at most 1."""
        seed = self._seed
        if seed is None and shuffle:  # every rank must draw the same order
            seed = self._control.broadcast_object(int(torch.empty((), dtype=torch.int64).random_()))
        return ShardedSampler(dataset, rank=self.rank, world_size=self.world_size, shuffle=shuffle, seed=seed or 0)

    # -- the loop --------------------------------------------------------------------------------------------------

    def batches(
        self,
        loader: Any,
        *,
        train: bool = True,
        epoch: int | None = None,
        skip: int = 0,
        steps: int | None = None,
        prefetch: int = 2,
        short: str | None = None,
    ) -> Iterator[Any]:
        """Iterate over `loader` with its batches on the device.

        train: ranks agree on the number of batches (what is dropped is counted in `dropped_batches`), `epoch` reaches
        `set_epoch`, and a loaded checkpoint's epoch goes on with its next unseen batch. train=False: every batch, no
        communication. `skip` leaves out the first batches; `steps` is the largest number of batches (micro-batches)
        to give; `prefetch` batches are copied ahead to the device. `short`: whether training sees a last batch that is
        smaller than the others ("keep", the default of eager devices) or not ("drop", counted in `dropped_batches`, the
        default of lazy devices, which compile a graph for each shape).
        """
        if self._closed:
            raise _closed("batches")
        _loader.check_arguments(train, epoch, skip, steps, prefetch, short)
        if train:
            return self._batches.train(loader, epoch, skip, steps, prefetch, short)
        return self._batches.evaluate(loader, epoch, skip, steps)

    def backward(self, loss: torch.Tensor, weight: Any = None) -> None:
        """Backward of `loss`, divided by the window (and scaled under fp16); never divide it yourself.

        With `weight` (the samples or tokens that the loss is the mean of) the gradient is sum(w*g)/sum(w) over ranks
        and micro-batches; give it always or never within a window. Raises `ArgumentError` for a loss that is not one
        attached number.
        """
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise _bad_loss(loss)
        if self._closed:
            raise _closed("backward")
        window = self._window
        window.check_gradients()
        factor = window.loss_factor(weight)
        if self._scaler is not None:
            loss = loss.float() * self._scaler.tensor
        if factor is not None:
            loss = loss * factor
        if self._alone:
            loss.backward()
        else:
            self._sync.backward(loss)
        window.backwards += 1
        if window.accumulate > 1:
            window.mark_gradients(parameters_of(self._optimizers.values()))

    def step(self, *optimizers: torch.optim.Optimizer, scheduler: Any = None, final: bool = False) -> StepResult:
        """End a micro-batch; at the end of the window take the step. Call it once a micro-batch, with all optimizers
        of the window.

        `scheduler` (one or several) moves only when the optimizers did. `final` ends the window here.
        """
        for optimizer in optimizers:
            if id(optimizer) not in self._optimizers:
                raise _unknown_optimizer(optimizer)
        if self._closed:
            raise _closed("step")
        if not optimizers:
            raise ArgumentError("step() got no optimizer; pass every optimizer of the window, as prepare returned them")
        self._micro_batches += 1
        window = self._window
        if self._cuts is not None:
            self._cuts.stepping(self._boundary.steps + 1)
        if final or window.last:
            result = self._boundary.run(optimizers, scheduler)
            position = self._batches.position
            if position is not None:
                position.committed = position.taken
        else:
            window.defer(optimizers)
            if self._cuts is not None:
                self._cuts.inside()
            result = INSIDE_WINDOW
        if not self._alone:
            self._sync.arm(window.last)
        return result

    def meter(self) -> Meter:
        """A new `Meter`: weighted means summed on the device, read once."""
        return Meter(self.backend.device, self.backend.collective, self.backend.device.metric_dtype)

    def lap(self) -> Lap:
        """Synchronize the device and return what was done since the previous lap (the first: since `init`)."""
        self.backend.device.synchronize()
        steps, at, waited = self._lap
        self._lap = now = (self._micro_batches, time.perf_counter(), self._batches.waited)
        return Lap(now[0] - steps, now[1] - at, now[2] - waited)

    # -- agreeing --------------------------------------------------------------------------------------------------

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank (early stop, SIGTERM); every rank must call it."""
        return self._control.any(bool(flag))

    def mean(self, value: Any, weight: float = 1) -> float:
        """Weighted mean of one number over ranks. Raises `ArgumentError` when all weights are 0."""
        value = value.detach() if isinstance(value, torch.Tensor) else value
        pairs = self._control.all_gather_object((float(value), float(weight)))
        total = math.fsum(w for _, w in pairs)
        if total == 0:
            raise ArgumentError(f"mean(weight={weight!r}): the weights of all ranks sum to 0, so there is no mean")
        return math.fsum(v * w for v, w in pairs) / total

    def gather(self, t: torch.Tensor) -> torch.Tensor:
        """Every rank's `t`, joined along the first dimension, which may differ between ranks; on every rank. A 0-dim
        `t` counts as one row.
        """
        return self.backend.collective.gather_ragged(t if t.dim() else t.unsqueeze(0))

    def barrier(self, timeout: float | None = None) -> None:
        """Wait for all ranks. Raises `CollectiveTimeout`, naming the ranks that did not come."""
        self._control.barrier(timeout)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print` on the main rank only."""
        if self.is_main:
            print(*args, **{"flush": True, **kwargs})  # noqa: T201 - it is what the caller asked for

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], **objects: Any) -> None:
        """Save models, optimizers, schedulers and plain values to the directory `path`: complete or absent.

        Rank 0 writes; every rank's random state and loader position are in it when every rank calls. Gradients of an
        open window are not saved: its batches come again after `load`, and count twice in BatchNorm's statistics.
        Raises `CheckpointError`, leaving the previous checkpoint as it was.
        """
        self._persistence.save(path, objects, self._micro_batches)

    def check_save(self, path: str | os.PathLike[str]) -> None:
        """Raise `ArgumentError` now if `save(path)` could not write there after hours of training."""
        if self.is_main:
            _checkpoint.check_writable(path)

    def load(self, path: str | os.PathLike[str], **objects: Any) -> dict[str, Any]:
        """Load what `save` wrote into the given objects; returns the plain values.

        Every rank reads `path`. Works on another world size or backend; what of the random state could not be carried
        over is logged. Raises `CheckpointError` before any object changes where the checkpoint is incomplete or does
        not fit.
        """
        if self._window.open:
            raise WindowError(
                "load() inside an open window: call it before the loop, or after step() returned boundary=True"
            )
        return self._persistence.load(path, objects)

    def load_scaler(self, state: dict[str, Any]) -> None:
        """Go on with the loss scale of a run without accel: the `state_dict()` of `torch.amp.GradScaler` or
        `torch_npu.npu.amp.GradScaler`. What accel saved comes back with `load`.

        Not used, and logged, where this run's precision needs no loss scaling. Raises `CheckpointError` for another
        schema, a truncated state and a scale that cannot be used.
        """
        if self._scaler is None:
            log.warning("load_scaler: not used, since this run's precision needs no loss scaling")
            return
        self._scaler.load_state_dict(state)

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the fabric and restore global numerics switches; an open window is reported as dropped. Harmless when
        repeated.
        """
        self._close(failed=False)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        left_cleanly = exc is None or (isinstance(exc, SystemExit) and exc.code in (None, 0))
        if left_cleanly or self._closed:
            self._close(failed=False)
            return
        known: AccelError | None = None
        if isinstance(exc, RuntimeError) and not isinstance(exc, AccelError) and not self.backend.memory.is_oom(exc):
            known = self._sync.explained(exc) or self.backend.device.explained(exc)
        with contextlib.suppress(AccelError, RuntimeError):  # the exception on its way out matters more
            if not self._alone:
                self.backend.collective.abort(f"{type(exc).__name__}: {exc}")
            self._close(failed=True)
        if known is not None:
            raise known from exc  # raised where nothing of ours stands around it: in DDP's forward, or at a late line

    def _close(self, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._cuts is not None:
            self._cuts.stop()
        if not failed:
            self._drop_window("the session was closed")
        self.backend.precision.restore()
        self.autocast = _no_autocast
        self._batches.close()
        try:
            self.backend.collective.destroy()
        finally:
            self._control.close()

    def _begin(self, final: bool) -> None:
        self._window.begin(final)
        if not self._alone:
            self._sync.arm(self._window.last)

    def _drop_window(self, why: str) -> None:
        if not self._window.open:
            return
        self.dropped_windows += 1
        log.warning(
            "a window of %d finished micro-batch(es) is dropped and its gradients are cleared: %s",
            self._window.index,
            why,
        )
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        self._window.reset()
        self._sync.arm(self._window.last)


def _bad_loss(loss: Any) -> ArgumentError:
    if not isinstance(loss, torch.Tensor):
        return ArgumentError(f"backward(loss={type(loss).__name__}): expected a tensor of one element")
    if loss.numel() != 1:
        return ArgumentError(
            f"backward(loss of shape {tuple(loss.shape)}): expected one element; take its mean or sum first"
        )
    return ArgumentError(
        "backward(loss): it is not attached to a graph (requires_grad is False); was it "
        "detached, or computed under no_grad?"
    )


def _no_autocast(enabled: bool = True) -> Any:  # noqa: ARG001 - as autocast is called
    raise _closed("autocast")


def _closed(what: str) -> WindowError:
    return WindowError(
        f"{what}() on a closed session: its precision is no longer in force; call it inside the with block"
    )


def _unknown_optimizer(optimizer: Any) -> ArgumentError:
    return ArgumentError(
        f"step({type(optimizer).__name__}): it was not prepared; pass the optimizers that session.prepare returned"
    )
