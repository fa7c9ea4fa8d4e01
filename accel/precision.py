"""What the words "fp32", "tf32", "bf16" and "fp16" mean, on every backend.

- fp32: IEEE arithmetic everywhere; TF32, HF32 and bf16 passes are off.
- tf32: each chip's fast fp32, named in the record as what it is.
- bf16, fp16: autocast; master weights, BatchNorm and reductions stay in fp32; fp16 scales the loss.

Owns the policy and what is recorded of it; a vendor's `numerics.py` holds the switches.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn

from accel import _autocast
from accel.capabilities import CapabilityTable
from accel.errors import ArgumentError, UnsupportedError
from accel.numerics import Numerics

log = logging.getLogger("accel")

_SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16"}
# The scale is an fp32 number on the device, and so is its reciprocal: beyond these one of them is 0 or inf (T16).
LEAST_SCALE, GREATEST_SCALE = 2.0**-126, 2.0**127
POLICIES = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class LossScale:
    """Dynamic loss scaling for fp16; the defaults are those of torch.amp.GradScaler, with a floor and a limit of skips.

    After `interval` good steps the scale is multiplied by `growth`; after an overflow by `backoff`, not below `floor`.
    `max_skips` skipped steps in a row raise `LossScaleError`: training then does not move (T16).
    """

    init: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    floor: float = 1.0
    max_skips: int = 50

    def __post_init__(self) -> None:
        checks = (
            ("floor", self.floor, self.floor >= LEAST_SCALE, "a number from 2**-126, whose reciprocal fp32 holds"),
            ("init", self.init, self.floor <= self.init <= GREATEST_SCALE, f"from floor={self.floor} to 2**127"),
            ("growth", self.growth, self.growth >= 1, "a number from 1"),
            ("backoff", self.backoff, 0 < self.backoff < 1, "a number between 0 and 1"),
            ("interval", self.interval, self.interval >= 1, "an integer from 1"),
            ("max_skips", self.max_skips, self.max_skips >= 1, "an integer from 1"),
        )
        for name, value, good, expected in checks:
            if not good or not math.isfinite(value):
                raise ArgumentError(f"LossScale({name}={value!r}): expected {expected}")


def checked_policy(name: object) -> str:
    """`name` if it is a policy; raises `ArgumentError` otherwise."""
    if name not in POLICIES:
        raise ArgumentError(f"precision={name!r}: expected one of {', '.join(POLICIES)}")
    return str(name)


class Precision:
    """The policy of one session and the vendor's switches behind it."""

    names = POLICIES

    def __init__(self, numerics: Numerics, capabilities: CapabilityTable) -> None:
        self._numerics = numerics
        self._capabilities = capabilities
        self._pool: list[torch.autocast] = []
        self.policy: str | None = None  # None until `apply`: the vendor's defaults are in force
        self.autocast_dtype: torch.dtype | None = None  # None where the policy does not cast
        self.loss_scaling = "none"
        self._set: dict[str, str] = {}  # the switches as `apply` left them
        self._widened: str | None = None  # the dispatch key whose list this session completes

    def apply(self, policy: str, deterministic: bool = False) -> None:
        """Put `policy` in force. Raises `UnsupportedError` where the capability table says that the chip lacks it."""
        self._capabilities.require(f"precision.{checked_policy(policy)}")
        self._numerics.apply(policy, deterministic)
        self.policy = policy
        self.autocast_dtype = self._numerics.autocast_dtype(policy)
        if self.autocast_dtype is not None and self._numerics.widened is not None and self._widened is None:
            self._widened, operators = self._numerics.widened
            _autocast.widen(self._widened, operators)
        self._check_in_force(policy)
        self._set = self._numerics.read()
        if policy == "fp32":
            log.info('precision "fp32" is IEEE fp32 on every chip; "tf32" is faster where the chip has a fast fp32')

    def restore(self) -> None:
        """Put the vendor's switches back as they were before `apply`."""
        if self._widened is not None:
            _autocast.release(self._widened)
            self._widened = None
        self._numerics.restore()
        self.policy = self.autocast_dtype = None

    def describe(self) -> dict[str, Any]:
        """The policy, and the switches as the vendor reports them now (not as we remember setting them)."""
        dtype, switches = self.autocast_dtype, self._numerics.read()
        return {
            "policy": self.policy,
            "meaning": None if self.policy is None else self._capabilities[f"precision.{self.policy}"].why,
            "autocast": None if dtype is None else str(dtype).removeprefix("torch."),
            "arithmetic": self.arithmetic(),
            "loss_scaling": self.loss_scaling,
            "determinism": self._numerics.determinism(),
            "changed": self._changed(switches),
            "switches": switches,
        }

    def _changed(self, now: dict[str, str]) -> str | None:
        """The switches that somebody else has set since `apply`."""
        if self.policy is None:
            return None
        found = (name for name in now if now[name] != self._set.get(name))
        return "; ".join(f"{name}: {self._set.get(name)}, now {now[name]}" for name in found) or None

    def _check_in_force(self, policy: str) -> None:
        """Raise `UnsupportedError` where the vendor took the policy and does nothing of it."""
        kind, dtype = self._numerics.device_type, self.autocast_dtype
        if dtype is not None:
            with torch.autocast(kind, dtype=dtype):
                if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) is not dtype:
                    raise UnsupportedError(
                        f"precision {policy!r}: torch's autocast for {kind} does not cast to {dtype}"
                    )
        elif policy == "fp32" and self._numerics.arithmetic() not in (None, "fp32"):
            raise UnsupportedError(
                f"precision 'fp32': {kind} still multiplies in {self._numerics.arithmetic()}; its switches are "
                f"{self._numerics.read()}"
            )

    def arithmetic(self) -> str | None:
        """What matrix products are computed in: "fp32", "tf32", "bf16", "fp16"; None where the vendor does not say."""
        return self._numerics.arithmetic() if self.autocast_dtype is None else _SHORT[self.autocast_dtype]

    def adapt(self, model: nn.Module) -> None:
        """Correct modules of `model` that this backend computes otherwise than torch documents."""
        self._numerics.adapt(model)

    def channels_last(self) -> bool:
        """Whether convolutions are faster in channels_last under the policy in force."""
        return self.policy is not None and self._numerics.channels_last(self.policy)

    def autocast(self, enabled: bool = True) -> contextlib.AbstractContextManager[Any]:
        """A context in which operations compute in the policy's dtype; it only casts."""
        if self.autocast_dtype is None:
            return _NO_CAST
        if not enabled:
            return torch.autocast(self._numerics.device_type, dtype=self.autocast_dtype, enabled=False)
        return _PooledAutocast(self._pool, self._numerics.device_type, self.autocast_dtype)


class _PooledAutocast:
    """Enters a `torch.autocast` that earlier steps made: a new one costs three times a reused one.

    The object entered is taken from the pool meanwhile, since a nested re-entry of the same object leaves autocast on.
    """

    __slots__ = ("_device_type", "_dtype", "_entered", "_pool")

    def __init__(self, pool: list[torch.autocast], device_type: str, dtype: torch.dtype) -> None:
        self._pool = pool
        self._device_type = device_type
        self._dtype = dtype

    def __enter__(self) -> None:
        pool = self._pool
        self._entered = pool.pop() if pool else torch.autocast(self._device_type, dtype=self._dtype)
        self._entered.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, exc, trace)
        self._pool.append(self._entered)


_NO_CAST: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
