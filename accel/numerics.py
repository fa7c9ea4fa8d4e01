"""`Numerics`: a vendor's precision and determinism switches - set, read back, restored.

The meaning of the policies lives in `accel.precision`; a vendor's `numerics.py` says which switches carry it out there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class Numerics(ABC):
    """The switches that decide what "fp32" means on one backend."""

    device_type: str

    @abstractmethod
    def apply(self, policy: str, deterministic: bool) -> None:
        """Set the switches for `policy`, remembering what was found. Raises `UnsupportedError` if the chip lacks it."""

    @abstractmethod
    def read(self) -> dict[str, str]:
        """The switches as the vendor reports them now, by their vendor names."""

    @abstractmethod
    def restore(self) -> None:
        """Put back every switch as `apply` found it; harmless when nothing was applied."""

    @abstractmethod
    def autocast_dtype(self, policy: str) -> torch.dtype | None:
        """Dtype that autocast computes in under `policy`; None where the policy does not cast."""
