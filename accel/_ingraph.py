"""`InGraphSync`: gradient sums on a lazy device, recorded into the step's own graph at the end of a window.

Nothing is reduced in backward, so micro-batches inside a window do not communicate; at its end one coalesced
all_reduce joins the graph that the session's single cut then runs on all ranks. Before that the ranks agree on the
host that they have recorded the same thing, since programs of one collective that differ between ranks never meet.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from accel._checks import GRADIENTS
from accel._flight import Entry
from accel._gradsync import GradSync, dense_gradient, make_equal, missing_gradient, no_backward
from accel._signature import Signature
from accel._words import named
from accel.backend import Backend
from accel.control import ControlPlane
from accel.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout

log = logging.getLogger("accel")


class _Prepared(NamedTuple):
    """One model: its parameters, what was trainable when it was prepared, and whose buffers hold."""

    parameters: list[nn.Parameter]
    trainable: set[int]
    unused_allowed: bool
    buffers: list[torch.Tensor]
    mean: bool


class InGraphSync(GradSync):
    """Gradients by the library's own all_reduce on a lazy backend with several ranks."""

    def __init__(self, backend: Backend, control: ControlPlane) -> None:
        self._device = backend.device
        self._transport = backend.transport
        self._collective = backend.collective
        self._control = control
        self._models: list[_Prepared] = []
        self._names: dict[int, str] = {}
        self._losses: list[torch.Tensor] = []  # those of this micro-batch: what its graph computes beside gradients
        self._entry: Entry | None = None  # of this step's reduction, from its recording to the cut that runs it
        self._split = False  # whether it was said that ranks record different graphs

    def wrap(self, model: nn.Module, *, buffers: str, unused_parameters: bool) -> nn.Module:
        parameters = list(model.parameters())
        filled = [t.detach() for t in (*parameters, *model.buffers()) if t.numel()]
        if filled:
            self._collective.broadcast_coalesced(filled, src=0)
        kept = [] if buffers == "local" or not any(p.requires_grad for p in parameters) else list(model.buffers())
        trainable = {id(p) for p in parameters if p.requires_grad}
        kept = [b for b in kept if b.numel()]
        self._models.append(_Prepared(parameters, trainable, unused_parameters, kept, buffers == "mean"))
        self._names.update({id(p): name for name, p in model.named_parameters()})
        return model

    def arm(self, last: bool) -> None:
        self._losses.clear()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        self._losses.append(loss)

    def finish(self, parameters: Sequence[torch.Tensor]) -> bool:
        wanted = {id(p) for p in parameters}
        models = [(model, [p for p in model.parameters if id(p) in wanted]) for model in self._models]
        words = self._agree([p for _, mine in models for p in mine])
        have = zip(*(flags for _, flags, _ in words), strict=True)  # by parameter: whether each rank has its gradient
        grads: dict[int, torch.Tensor] = {}
        for model, mine in models:
            found = [(p, next(have)) for p in mine]
            if not any(any(ranks) for _, ranks in found):
                continue  # the losses of this window do not involve this model
            for p, ranks in found:
                if not (all(ranks) or model.unused_allowed) and id(p) in model.trainable:
                    raise missing_gradient(self._names.get(id(p)))
                if any(ranks):
                    if p.grad is None:
                        p.grad = torch.zeros_like(p)
                    grads[id(p)] = dense_gradient(p)
        if grads:
            dtypes = tuple(dict.fromkeys(grad.dtype for grad in grads.values()))
            shape = torch.Size((sum(grad.numel() for grad in grads.values()),))
            self._entry = self._collective.reduce_gradients(Signature(GRADIENTS, "mean", dtypes, (shape,)))
            with self._transport.recording():
                self._collective.all_reduce_coalesced(list(grads.values()), "mean")
        return True

    def total(self, value: torch.Tensor) -> None:
        with self._transport.recording():
            self._collective.all_reduce(value, "sum")

    def sync_buffers(self) -> None:
        with self._transport.recording():
            for model in self._models:
                make_equal(self._collective, model.buffers, model.mean)

    def cut(self) -> None:
        try:
            self._transport.cut()
        except CollectiveError as error:
            self._control.last_words()  # a rank that gave up says why
            raise type(error)(f"{error}{self._control.hung(str(error))}") from error
        if self._entry is not None:
            self._entry.close()
            self._entry = None

    def _agree(self, parameters: list[nn.Parameter]) -> list[Any]:
        """What each rank has: backwards of this micro-batch, whether each parameter has a gradient, its graph's digest.

        Returns when all ranks have recorded the same, or have run apart what they had.
        """
        pending = [*self._losses, *(p.grad for p in parameters if p.grad is not None)]
        word = [len(self._losses), [p.grad is not None for p in parameters], self._transport.digest(pending)]
        self._losses.clear()
        try:
            words = self._control.all_gather_object(word)
        except CollectiveTimeout as error:
            raise no_backward(self._control.rank, error) from error
        counts, digests = [count for count, _, _ in words], [digest for _, _, digest in words]
        if len(set(counts)) > 1:
            raise CollectiveMismatch(
                "ranks called backward a different number of times in the last micro-batch of this window "
                f"({', '.join(f'rank {rank}: {count}' for rank, count in enumerate(counts))}). Call backward equally "
                "often on every rank (for a batch to be left out: with weight=0 or a loss of 0)"
            )
        if len(set(digests)) > 1:
            self._run_apart(digests)
        return words

    def _run_apart(self, digests: list[Any]) -> None:
        """Run what differs between ranks before anything is reduced: the rest of the step is alike everywhere."""
        self._device.flush()
        if not self._split:
            self._split = True
            odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
            log.warning(
                "%s recorded another graph than rank 0 (a batch of another shape, or a value read on some ranks only): "
                "such a step runs as two graphs, which is slower. Give all ranks batches of one shape, and read values "
                "after step()",
                named(odd),
            )
