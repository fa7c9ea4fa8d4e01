"""One tensor as a row of numbers that is small, linear where it must be, and the same on every backend.

A row holds statistics and a random projection `R X C` of the tensor's elements, laid out as a nearly square matrix X in
logical order; R (4 rows) and C (8 columns) hold seeded signs. The mean of the squares of its 32 numbers estimates the
square of the tensor's 2-norm (Johnson-Lindenstrauss with signs, https://doi.org/10.1016/S0022-0000(03)00025-4), and
since it is linear, the difference of two projections is the projection of the difference: two runs can be compared, and
an update measured, long after the tensors are gone. Everything is computed in fp64.
"""

from __future__ import annotations

import math

import torch

ROWS, COLUMNS = 4, 8
STATISTICS = ("norm", "mean", "least", "greatest", "not_finite")
WIDTH = len(STATISTICS) + ROWS * COLUMNS
RECTIFIED = 1 + ROWS * COLUMNS  # numbers of `Sketcher.rectified`: elements above 0, and the projection of their mask
SEED = 20  # of the signs: part of the format, so that all traces can be compared


class Sketcher:
    """Makes rows on `device`, which must compute in fp64; keeps the signs that it has drawn."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._drawn: dict[tuple[int, int], torch.Tensor] = {}

    def row(self, tensor: torch.Tensor) -> torch.Tensor:
        """(WIDTH,) fp64 of a real or complex tensor of any dtype and shape; zeros for an empty one."""
        tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        flat = tensor.to(self._device, torch.float64).reshape(-1)
        count = flat.numel()
        if count == 0:
            return torch.zeros(WIDTH, dtype=torch.float64, device=self._device)
        projected = self._projected(flat)
        least, greatest = torch.aminmax(flat)
        lost = (~torch.isfinite(flat)).sum().to(torch.float64)
        statistics = torch.stack([torch.linalg.vector_norm(flat), flat.mean(), least, greatest, lost])
        return torch.cat([statistics, projected])

    def rectified(self, tensor: torch.Tensor) -> torch.Tensor:
        """(RECTIFIED,) fp64: how many elements are above 0, and the projection of where they are; zeros for a tensor
        whose least element is not exactly 0, which no ReLU has made.

        The mask is of 0 and 1, so that the mean of the squares of two projections' difference estimates how many
        elements lie on the other side of 0.
        """
        tensor = tensor.detach()
        if tensor.is_complex() or not tensor.numel():
            return torch.zeros(RECTIFIED, dtype=torch.float64, device=self._device)
        flat = tensor.to(self._device).reshape(-1)
        above = (flat > 0).to(torch.float64)
        row = torch.cat([above.sum().reshape(1), self._projected(above)])
        return row * (flat.amin() == 0)

    def _projected(self, flat: torch.Tensor) -> torch.Tensor:
        """(ROWS * COLUMNS,) of (n,)."""
        count = flat.numel()
        columns = math.isqrt(count - 1) + 1
        rows = -(-count // columns)
        padded = flat if rows * columns == count else torch.nn.functional.pad(flat, (0, rows * columns - count))
        projected = self._signs(rows, ROWS).T @ (padded.view(rows, columns) @ self._signs(columns, COLUMNS))
        return projected.reshape(-1)

    def samples(self, tensor: torch.Tensor) -> torch.Tensor:
        """One number a sample (the first dimension): equal samples have equal numbers, in whatever order they come."""
        flat = tensor.detach().to(self._device, torch.float64).reshape(len(tensor), -1)
        return flat @ self._signs(flat.shape[1], COLUMNS)[:, 0]

    def _signs(self, count: int, width: int) -> torch.Tensor:
        drawn = self._drawn.get((count, width))
        if drawn is None:
            generator = torch.Generator().manual_seed(SEED * 1_000_003 + width)
            bits = torch.randint(0, 2, (count, width), generator=generator)
            drawn = self._drawn[count, width] = (2 * bits - 1).to(self._device, torch.float64)
        return drawn
