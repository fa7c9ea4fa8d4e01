"""`Rehearsal`: training steps of a session that leave no trace, for a search that must try some.

Keeps parameters, buffers, optimizer state, loss scale and random state on the host and puts them back. Between ranks a
step is tried twice: first without communication, so that a rank which runs out of memory leaves no other waiting in a
reduction, then as it is. The dry step takes the memory of a real one: gradients go into DDP's buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from accel._gradsync import DDPSync, GradSync, NoSync
from accel._window import parameters_of
from accel.errors import ArgumentError, CollectiveError, WindowError
from accel.session import Session


class Rehearsal:
    """Rehearses steps of `session`, which must be between windows; `end` puts everything back."""

    def __init__(self, session: Session) -> None:
        if session._window.open:
            raise WindowError("find_batch_size() inside an open window: call it before the loop, or after a whole step")
        self._session = session
        self._sync = session._sync
        models = [session.unwrap(model) for model in session._models]
        self._tensors = [t for model in models for t in (*model.parameters(), *model.buffers())]
        self._values = [_on_host(t) for t in self._tensors]
        self._states = [_state_on_host(optimizer) for optimizer in session._optimizers.values()]
        self._random = session.backend.device.rng_state()
        self._scale = None if session._scaler is None else session._scaler.state_dict()
        self._counts = session._micro_batches, session._boundary.steps
        self._buckets = _Buckets(self._sync) if isinstance(self._sync, DDPSync) else None

    @property
    def dry(self) -> bool:
        """Whether a step is tried without communication first: between ranks, where one may run out of memory alone."""
        return self._session.world_size > 1

    @property
    def warms(self) -> bool:
        """Whether the first step communicates through buckets that later ones do not have."""
        return self._buckets is not None

    def dry_step(self, step: Callable[[], object]) -> None:
        """`step` without communication: every rank steps on its own gradients."""
        for parameter, view in self._buckets.views.values() if self._buckets else ():
            parameter.grad = view.zero_()
        self._use(_Alone(self._sync, self._session.backend.device.flush))
        try:
            self._session._sync.arm(self._session._window.last)
            step()
        finally:
            self._use(self._sync)
            self._sync.arm(self._session._window.last)

    def real_step(self, step: Callable[[], object]) -> None:
        """`step` as it is."""
        if self._buckets is None:
            step()
            return
        self._use(self._buckets)
        try:
            step()
        finally:
            self._use(self._sync)

    def rewind(self) -> None:
        """Drop what a step left in gradients, window and optimizer state, so that the next one begins as the first."""
        session = self._session
        for parameter in [*parameters_of(session._optimizers.values()), *self._tensors]:
            parameter.grad = None
        session._window.reset()
        self._sync.arm(session._window.last)
        for optimizer, saved in zip(session._optimizers.values(), self._states, strict=True):
            optimizer.state.clear()
            for parameter, state in saved:
                optimizer.state[parameter] = {key: _back(value, parameter) for key, value in state.items()}
        if session._scaler is not None and self._scale is not None:
            session._scaler.load_state_dict(self._scale)

    def recover(self) -> None:
        """After a real step that failed on every rank: DDP can reduce again, and makes its buckets anew."""
        self._sync.recover()
        if self._buckets is not None:
            self._buckets.views.clear()

    def end(self) -> None:
        """Put everything back as it was."""
        self.rewind()
        self._buckets = None
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self._values, strict=True):
                tensor.copy_(value)
        session = self._session
        session._micro_batches, session._boundary.steps = self._counts
        session.backend.device.set_rng_state(self._random)

    def _use(self, sync: GradSync) -> None:
        session = self._session
        session._sync = session._boundary._sync = sync
        if session._cuts is not None and session.world_size > 1:
            session._cuts.divert(sync.cut)


class _Around:
    """What both stand-ins below pass on to the session's own `GradSync`, `inner`."""

    def __init__(self, inner: GradSync) -> None:
        self._inner = inner

    def wrap(self, model: nn.Module, *, buffers: str, unused_parameters: bool) -> nn.Module:
        raise ArgumentError("find_batch_size(step): step calls prepare; prepare the model before the search")

    def backward(self, loss: torch.Tensor) -> None:
        self._inner.backward(loss)

    def explained(self, error: RuntimeError) -> CollectiveError | None:
        return self._inner.explained(error)


class _Alone(_Around, NoSync):
    """Each rank steps on its own gradients; a lazy device's graph is run by `flush`, without the other ranks."""

    def __init__(self, inner: GradSync, flush: Callable[[], None]) -> None:
        super().__init__(inner)
        self._flush = flush

    def arm(self, last: bool) -> None:
        self._inner.arm(False)

    def cut(self) -> None:
        self._flush()


class _Buckets(_Around, GradSync):
    """Remembers where in DDP's buckets each gradient lies; DDP makes them anew after its first step."""

    def __init__(self, inner: DDPSync) -> None:
        super().__init__(inner)
        self.views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def arm(self, last: bool) -> None:
        self._inner.arm(last)

    def finish(self, parameters: Sequence[torch.Tensor]) -> bool:
        equal = self._inner.finish(parameters)
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad._is_view():
                self.views[id(parameter)] = parameter, parameter.grad
        return equal

    def total(self, value: torch.Tensor) -> None:
        self._inner.total(value)

    def sync_buffers(self) -> None:
        self._inner.sync_buffers()


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _state_on_host(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    return [
        (parameter, {k: _on_host(v) if isinstance(v, torch.Tensor) else v for k, v in state.items()})
        for parameter, state in optimizer.state.items()
    ]


def _back(value: Any, parameter: torch.Tensor) -> Any:
    """`value` of an optimizer's state, on the parameter's device; scalar counters stay where optimizers keep them."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(parameter.device, copy=True) if value.dim() else value.clone()
