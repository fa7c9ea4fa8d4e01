"""Loss scaling for fp16: one implementation and one state schema for every backend.

The scale and the growth tracker live on the host, since the host reads the overflow flag once a boundary anyway; a
copy of the scale on the device multiplies the loss. fp32, tf32 and bf16 need no scaling: they have no scaler at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from accel.errors import CheckpointError, LossScaleError
from accel.precision import GREATEST_SCALE, LossScale

log = logging.getLogger("accel")

SCHEMA = 1


class Scaler:
    """Dynamic (`LossScale`) or static (a float) loss scaling."""

    def __init__(self, config: LossScale | float, device: torch.device) -> None:
        self.dynamic = isinstance(config, LossScale)
        self.config = (
            config if isinstance(config, LossScale) else LossScale(init=float(config), floor=min(1.0, float(config)))
        )
        self.skips = 0  # in a row
        self._good = 0  # steps since the last change
        self._scale = self.config.init
        self.tensor = torch.tensor(self._scale, dtype=torch.float32, device=device)

    @property
    def scale(self) -> float:
        return self._scale

    def unscale(self, grads: Sequence[torch.Tensor], factor: float | torch.Tensor | None) -> torch.Tensor:
        """Divide `grads` by the scale in place, and multiply by `factor`; return a flag, 1.0 where any was not finite.

        The flag is a 0-dim fp32 tensor on the gradients' device. Grouped by dtype, so that none is missed.
        """
        inverse = self.tensor.reciprocal()
        if factor is not None:
            inverse = inverse * factor
        found = torch.zeros((), dtype=torch.float32, device=self.tensor.device)
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for grad in grads:
            by_dtype.setdefault(grad.dtype, []).append(grad._values() if grad.is_sparse else grad)
        for group in by_dtype.values():
            # The operator under torch.amp.GradScaler: one pass that checks and multiplies.
            torch._amp_foreach_non_finite_check_and_unscale_(group, found, inverse)
        return found

    def update(self, overflow: bool) -> None:
        """Move the scale after a boundary."""
        if overflow:
            self.skips += 1
            self._good = 0
            if self.dynamic:
                self._set(max(self.config.floor, self._scale * self.config.backoff))
            return
        self.skips = 0
        if not self.dynamic:
            return
        self._good += 1
        if self._good >= self.config.interval:
            self._good = 0
            grown = self._scale * self.config.growth
            if grown <= GREATEST_SCALE:  # the scale never becomes inf (T16)
                self._set(grown)

    def check_skips(self, named: Iterable[tuple[str, torch.Tensor]], step: int, rank: int) -> None:
        """Raise `LossScaleError` when the limit of skipped steps in a row is reached, with the first bad parameter."""
        if self.skips < self.config.max_skips:
            return
        bad = next((name for name, grad in named if not bool(torch.isfinite(grad).all())), None)
        raise LossScaleError(
            f"{self.skips} steps in a row were skipped because gradients overflowed (step {step}, rank {rank}, loss "
            f"scale {self._scale:g}); the first parameter whose gradient is not finite is {bad!r}. The loss itself is "
            "probably not finite: look at its value, lower the learning rate, or use precision='bf16'"
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "scale": self._scale,
            "good_steps": self._good,
            "skips": self.skips,
            "dynamic": self.dynamic,
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise `CheckpointError` for a state of another schema, a truncated one, or a scale that cannot be used."""
        self._known(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state written by `state_dict`, by `torch.amp.GradScaler` or by `torch_npu.npu.amp.GradScaler`.

        Growth, backoff and interval stay those of this run. Raises as `check_state` does.
        """
        known = self._known(state)
        if known is None:
            log.warning("the saved loss scaler was disabled and has no scale: this run's own starts at %g", self._scale)
            return
        if known["dynamic"] != self.dynamic:
            saved = "dynamic" if known["dynamic"] else "static"
            log.warning(
                "the saved loss scaling is %s, this run's is not: the run's own starts at %g", saved, self._scale
            )
            return
        self._good, self.skips = known["good_steps"], known["skips"]
        self._set(known["scale"])

    def _known(self, state: object) -> dict[str, Any] | None:
        """`state` in this file's schema, whoever wrote it; None for that of a disabled GradScaler, which is empty."""
        if not isinstance(state, Mapping):
            raise CheckpointError(f"the loss scaler's state is a {type(state).__name__}; expected a dict")
        if not state:
            return None
        if "schema" not in state and "_growth_tracker" in state:
            state = {
                "schema": SCHEMA,
                **({"scale": state["scale"]} if "scale" in state else {}),
                "good_steps": state["_growth_tracker"],
                "skips": 0,
                "dynamic": state.get("dynamic", True),  # torch_npu's own scaler has a static form, torch's has not
            }
        if state.get("schema") != SCHEMA:
            raise CheckpointError(
                f"the loss scaler's state has schema {state.get('schema')!r}; this version of accel reads {SCHEMA}, "
                "and the states of torch.amp.GradScaler and torch_npu.npu.amp.GradScaler"
            )
        missing = {"scale", "good_steps", "skips", "dynamic"} - set(state)
        if missing:
            raise CheckpointError(f"the loss scaler's state lacks {', '.join(sorted(missing))}: it is truncated")
        for name in ("good_steps", "skips"):
            count = state[name]
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise CheckpointError(f"the loss scaler's state has {name}={count!r}; expected an integer from 0")
        try:
            scale = float(state["scale"])
        except (TypeError, ValueError):
            raise CheckpointError(f"the saved loss scale {state['scale']!r} is not a number") from None
        if not self.config.floor <= scale <= GREATEST_SCALE:
            raise CheckpointError(f"the saved loss scale {scale!r} is not from floor={self.config.floor} to 2**127")
        return {**state, "scale": scale, "dynamic": bool(state["dynamic"])}

    def _set(self, scale: float) -> None:
        self._scale = scale
        self.tensor.fill_(scale)
