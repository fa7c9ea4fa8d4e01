"""The end of a window: the one place where gradients become a step.

In this order and nowhere else: reduce what is not yet reduced, unscale, clip, agree on overflow, step or skip, move
the scale, move the scheduler (only when stepped), zero all gradients of the session, make buffers equal, cut.
"""

from __future__ import annotations

import logging
import math
from typing import Any, NamedTuple

import torch

from accel._cuts import Cuts
from accel._gradsync import GradSync
from accel._window import VANISHED, Window, parameters_of
from accel.backend import Backend
from accel.errors import ArgumentError, WindowError
from accel.scaler import Scaler

log = logging.getLogger("accel")


class StepResult(NamedTuple):
    """What one `Session.step` did. `grad_norm` and `loss_scale` stay on the device (0-dim); reading one waits
    for it.
    """

    boundary: bool  # the micro-batch ended a window
    stepped: bool  # the optimizers moved
    skipped: bool  # they did not, because a gradient overflowed
    grad_norm: torch.Tensor | None  # unscaled, before clipping; None unless clip_norm was given
    loss_scale: torch.Tensor | None  # that the gradients were computed with; None without loss scaling


INSIDE_WINDOW = StepResult(False, False, False, None, None)


class Boundary:
    """Carries out the end of a window for one session."""

    def __init__(
        self,
        backend: Backend,
        window: Window,
        sync: GradSync,
        scaler: Scaler | None,
        clip_norm: float | None,
        names: dict[int, str],
        prepared: dict[int, torch.optim.Optimizer],
        cuts: Cuts | None,
    ) -> None:
        self._device = backend.device
        self._collective = backend.collective
        self._alone = backend.collective.world_size == 1
        self._window = window
        self._sync = sync
        self._scaler = scaler
        self._clip_norm = clip_norm
        self._names = names  # of the prepared parameters, by id
        self._prepared = prepared  # every optimizer of the session, by id
        self._cuts = cuts  # None on eager devices
        self.steps = 0  # boundaries reached
        self._warned = False

    def run(self, optimizers: tuple[Any, ...], scheduler: Any) -> StepResult:
        if scheduler is not None:
            _check_scheduler(scheduler)
        window = self._window
        window.end_micro_batch(optimizers)
        self.steps += 1
        everywhere = True if self._alone else self._sync.finish(list(parameters_of(optimizers)))
        if not window.backwards and not any(p.grad is not None for p in parameters_of(optimizers)):
            window.reset()  # no rank has called backward in this window
            self._warn_of_nothing()
            self._cut()
            return StepResult(True, False, False, None, None)
        factor = window.rescale() if not window.weighted else self._weight_factor()
        norm, scale, skipped = None, None, False
        if self._scaler is None and self._clip_norm is None and factor is None:
            if not any(p.grad is not None for p in parameters_of(optimizers)):
                raise WindowError(f"step() found no gradient at all: {VANISHED}")
        else:
            norm, scale, skipped = self._finish_gradients(optimizers, factor, everywhere)
        if not skipped:
            for optimizer in optimizers:
                optimizer.step()
            if scheduler is not None:
                for one in scheduler if isinstance(scheduler, (list, tuple)) else (scheduler,):
                    one.step()
        for (
            optimizer
        ) in self._prepared.values():  # those of other optimizers too: a loss leaves gradients in all it used
            optimizer.zero_grad(set_to_none=True)
        if not self._alone:
            self._sync.sync_buffers()
        window.reset()
        self._cut()
        return StepResult(True, not skipped, skipped, norm, scale)

    def _warn_of_nothing(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "step(): nothing was trained, since backward was not called in window %d (told once): call "
                "session.backward(loss) before step()",
                self.steps,
            )

    def _cut(self) -> None:
        if self._cuts is not None:
            self._cuts.boundary(self.steps)

    def _finish_gradients(
        self, optimizers: tuple[Any, ...], factor: float | torch.Tensor | None, everywhere: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
        """Unscale, rescale and clip; whether the step must be skipped."""
        parameters = [p for p in parameters_of(optimizers) if p.grad is not None]
        if len(optimizers) > 1:  # a parameter that two of them hold counts once in the norm
            parameters = list({id(p): p for p in parameters}.values())
        grads = [grad for p in parameters if (grad := p.grad) is not None]
        if not grads:
            raise WindowError(f"step() found no gradient at all: {VANISHED}")
        scaler, clip, skipped, scale = self._scaler, self._clip_norm, False, None
        if scaler is not None:
            scale = scaler.tensor.clone()
            found = scaler.unscale(grads, factor)
        elif factor is not None:
            multiply: Any = torch._foreach_mul_  # torch's stub does not name the form with a float
            multiply(grads, factor)
        norm = None if clip is None else _total_norm(grads)
        if scaler is not None:
            if not everywhere:  # DDP's sum carries an inf to every rank by itself; rank-local gradients do not (T13)
                self._collective.all_reduce(found, "max")
            skipped = bool(found.item())  # the one host read of a boundary
            scaler.update(skipped)
            if skipped:
                named = ((self._names.get(id(p), "(not prepared)"), g) for p, g in zip(parameters, grads, strict=True))
                scaler.check_skips(named, self.steps, self._collective.rank)
        if clip is not None and norm is not None and not skipped and not math.isinf(clip):
            torch._foreach_mul_(grads, torch.clamp(clip / (norm + 1e-6), max=1.0))
        return norm, scale, skipped

    def _weight_factor(self) -> torch.Tensor:
        """world_size / sum of weights over ranks and micro-batches: turns the mean over ranks of sum(w*g) into the
        weighted mean.

        Where all weights are 0 there is nothing to learn from: the factor is 0 and the gradient with it.
        """
        weight, device = self._window.weight, self._device.torch_device
        total = torch.as_tensor(weight, dtype=torch.float32, device=device).reshape(()).clone()
        if not self._alone:
            self._sync.total(total)
        return torch.where(total > 0, self._collective.world_size / total, torch.zeros_like(total))


def _check_scheduler(scheduler: Any) -> None:
    for one in scheduler if isinstance(scheduler, (list, tuple)) else (scheduler,):
        if isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ArgumentError(
                "step(scheduler=ReduceLROnPlateau): it needs a metric; call scheduler.step(metric) "
                "after the evaluation instead"
            )


def _total_norm(grads: list[Any]) -> torch.Tensor:
    """2-norm over all gradients, as torch.nn.utils.get_total_norm gives it.

    That function also sorts its tensors by device, which costs more than the norm where a model is small; here they are
    on one device.
    """
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    return norm
