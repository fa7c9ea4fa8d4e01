"""Dropout masks from a generator of the host: the same on every backend for one seed, others on each rank.

A device's own generator gives each chip other masks, so that two backends train differently from the first step. A
mask here depends on the session's seed, the rank, the module's place and how often it was called, and on nothing that
a device or a loader draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from accel.errors import CheckpointError, ModelError

_KINDS: dict[type[nn.Module], int] = {  # how many dimensions after (N, C) share one draw; -1: none does
    nn.Dropout: -1,
    nn.Dropout1d: 1,
    nn.Dropout2d: 2,
    nn.Dropout3d: 3,
}
_OTHER = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
Move = Callable[[torch.Tensor], torch.Tensor]


class HostDropout(nn.Module):
    """Stands where a dropout of `prepare`'s model stood; the same arithmetic, with masks drawn on the host."""

    def __init__(self, p: float, shared: int, key: str, move: Move) -> None:
        super().__init__()
        self.p, self._shared, self._key, self._move = p, shared, key, move
        self.draws = 0  # masks so far
        self.replaying = False  # a checkpointed forward is computed again, with the masks that it had

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` of any shape (N, ...) with elements (Dropout) or channels (Dropout1d to 3d) zeroed, the rest scaled."""
        if not self.training or self.p == 0:
            return x
        if torch._C._current_graph_task_id() != -1 and not self.replaying:
            raise ModelError(
                "a dropout prepared with host_dropout=True is computed again inside backward: "
                "torch.utils.checkpoint cannot replay its mask; use accel.checkpoint"
            )
        digest = hashlib.blake2b(f"{self._key}/{self.draws}".encode(), digest_size=8).digest()
        self.draws += 1
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        shape = x.shape if self._shared < 0 else (*x.shape[: x.dim() - self._shared], *([1] * self._shared))
        kept = (torch.rand(shape, generator=generator) >= self.p).to(torch.float32)
        scaled = kept / (1 - self.p) if self.p < 1 else kept
        return x * self._move(scaled).to(x.dtype)


class Masks:
    """The dropouts of one session that draw on the host."""

    def __init__(self, seed: int | None, rank: int, move: Move) -> None:
        self._seed, self._rank, self._move = seed, rank, move
        self._dropouts: list[HostDropout] = []

    def install(self, model: nn.Module) -> None:
        """Put a `HostDropout` in the place of each dropout inside `model`.

        Raises `ModelError`, changing nothing, for a module whose random numbers cannot be drawn on the host.
        """
        for name, module in model.named_modules():
            inner = isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and module.dropout > 0
            if inner or isinstance(module, _OTHER) or (module is model and type(module) in _KINDS):
                raise ModelError(
                    f"prepare(host_dropout=True): module {name!r} ({type(module).__name__}) draws its random numbers "
                    "by itself, on the device; give it dropout=0 and put an nn.Dropout beside it, or leave "
                    "host_dropout out"
                )
        if self._seed is None:
            self._seed = int(torch.empty((), dtype=torch.int64).random_())
        placed: dict[int, HostDropout] = {}
        for owner in list(model.modules()):
            for name, module in list(owner.named_children()):
                if type(module) not in _KINDS:
                    continue
                if id(module) not in placed:
                    key = f"{self._seed}/{self._rank}/{len(self._dropouts)}"
                    placed[id(module)] = made = HostDropout(module.p, _KINDS[type(module)], key, self._move)  # type: ignore[arg-type]
                    made.train(module.training)
                    self._dropouts.append(made)
                setattr(owner, name, placed[id(module)])

    def state(self) -> list[int]:
        """How many masks each dropout has drawn."""
        return [dropout.draws for dropout in self._dropouts]

    def load(self, state: Sequence[int]) -> None:
        """Go on where `state` was. Raises `CheckpointError` for that of a model with other dropouts."""
        if len(state) != len(self._dropouts):
            raise CheckpointError(
                f"the checkpoint has the masks of {len(state)} dropout(s), this session prepared {len(self._dropouts)} "
                "with host_dropout=True"
            )
        for dropout, draws in zip(self._dropouts, state, strict=True):
            dropout.draws = int(draws)


class Replay:
    """The masks of a checkpointed forward, for when it is computed again."""

    def __init__(self, owners: Iterable[nn.Module]) -> None:
        found = {m for owner in owners for m in owner.modules() if isinstance(m, HostDropout)}
        self._then = [(dropout, dropout.draws) for dropout in found]

    def __enter__(self) -> None:
        self._now = [dropout.draws for dropout, _ in self._then]
        for dropout, draws in self._then:
            dropout.draws, dropout.replaying = draws, True

    def __exit__(self, *exc: object) -> None:
        for (dropout, _), draws in zip(self._then, self._now, strict=True):
            dropout.draws, dropout.replaying = draws, False
