"""`Numerics`: a vendor's precision and determinism switches - set, read back, restored.

The meaning of the policies lives in `accel.precision`; a vendor's `numerics.py` says which switches carry it out
there. The switches belong to the process: this file keeps sessions that overlap from leaving each other's values
behind.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import nn

log = logging.getLogger("accel")


class Numerics(ABC):
    """The switches that decide what "fp32" means on one backend."""

    device_type: str
    # The dispatch key of the device type's autocast, and operators that its list lacks and a policy computes in fp32.
    widened: tuple[str, tuple[str, ...]] | None = None

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _applied: ClassVar[list[Numerics]] = []  # those whose switches are set in this process, the latest last

    # What torch.use_deterministic_algorithms does not make repeatable here, for the record.
    not_deterministic: str = "unknown: the backend does not say what it leaves out"
    # Variables of the vendor's that determinism needs, with the values that give it; a user's own value is kept.
    deterministic_values: ClassVar[dict[str, tuple[str, ...]]] = {}

    def __init__(self) -> None:
        self._found: Any = None  # the values before `apply`, as `snapshot` gave them
        self._choice: tuple[str, bool] | None = None  # policy and determinism in force

    def apply(self, policy: str, deterministic: bool) -> None:
        """Set the switches for `policy`, remembering the values found.

        The latest session's choice is in force for the whole process. Raises `UnsupportedError` for a policy the chip
        lacks.
        """
        with self._lock:
            others = [one for one in self._applied if one.device_type == self.device_type and one is not self]
            if others and others[-1]._choice != (policy, deterministic):
                log.warning(
                    "precision %r is now in force for all sessions of this process; another open one had %r: "
                    "switches of a vendor's library cannot differ between sessions",
                    policy,
                    others[-1]._choice,
                )
            if self not in self._applied:
                self._found = self.snapshot()
                self._applied.append(self)
            self.set(policy, deterministic)
            self._choice = (policy, deterministic)

    @property
    def deterministic(self) -> bool:
        """Whether `apply` asked for deterministic algorithms."""
        return self._choice is not None and self._choice[1]

    def determinism(self) -> str | None:
        """What is not made repeatable although `apply` was asked for it; None where it was not asked."""
        if not self.deterministic:
            return None
        kept = (
            f"{name}={os.environ.get(name)} as the user set it, which is not deterministic: use {' or '.join(good)}"
            for name, good in self.deterministic_values.items()
            if os.environ.get(name) not in good
        )
        return "; ".join([*kept, self.not_deterministic])

    def restore(self) -> None:
        """Put back every switch as `apply` found it; harmless when nothing was applied.

        Where a later session is still open its choice stays in force, and it will put back what was found here.
        """
        with self._lock:
            if self not in self._applied:
                return
            mine = [one for one in self._applied if one.device_type == self.device_type]
            later = mine[mine.index(self) + 1 :]
            if later:
                later[0]._found = self._found
            else:
                self.put_back(self._found)
            self._applied.remove(self)
            self._found = self._choice = None

    @abstractmethod
    def snapshot(self) -> Any:
        """The switches as they are, in a form that `put_back` takes."""

    @abstractmethod
    def set(self, policy: str, deterministic: bool) -> None:
        """Set the switches. Raises `UnsupportedError`, changing nothing, for a policy the chip lacks."""

    @abstractmethod
    def put_back(self, found: Any) -> None: ...

    @abstractmethod
    def read(self) -> dict[str, str]:
        """The switches as the vendor reports them now, by their vendor names."""

    @abstractmethod
    def autocast_dtype(self, policy: str) -> torch.dtype | None:
        """Dtype that autocast computes in under `policy`; None where the policy does not cast."""

    def arithmetic(self) -> str | None:
        """What products of fp32 tensors are computed in now, read back: "fp32", "tf32", "bf16" or a vendor's own name;
        None where the switches of products and convolutions differ, or the vendor does not say.
        """
        return None

    def adapt(self, model: nn.Module) -> None:  # noqa: B027 - most backends compute what torch documents
        """Correct what modules of `model`, which is on the device, compute otherwise here than torch documents."""

    def channels_last(self, policy: str) -> bool:
        """Whether `prepare` should lay out convolution models in channels_last under `policy`: where that is faster."""
        return False


def set_deterministic(wanted: bool) -> None:
    """Set torch's switch for deterministic algorithms, unless it is so already.

    Setting it imports torch's compiler, which takes seconds in every process (torch 2.13).
    """
    if torch.are_deterministic_algorithms_enabled() != wanted:
        torch.use_deterministic_algorithms(wanted)
