"""How far two rows, or two sets of rows, of the traces lie apart. Arrays are those of `_trace`."""

from __future__ import annotations

import math

import numpy as np

from accel.parity._trace import Array

# As `_sketch` lays a row out; that module needs torch, and comparing does not.
NORM, LOST, PROJECTED = 0, 4, 5


def apart(a: Array, b: Array) -> Array:
    """2-norm of the difference of the tensors behind rows `a` and `b` (..., W), estimated from their projections.

    0 where both hold something that is not finite, as often; infinite where only one does, or where only one is there.
    """
    same = np.nan_to_num(a[..., LOST], nan=-1.0) == np.nan_to_num(b[..., LOST], nan=-1.0)
    finite = (a[..., LOST] == 0) & (b[..., LOST] == 0)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.sqrt(np.mean((a[..., PROJECTED:] - b[..., PROJECTED:]) ** 2, axis=-1))
    result: Array = np.where(finite, distance, np.where(same, 0.0, math.inf))
    return result


def size(rows: Array) -> Array:
    """2-norm of the tensors behind `rows`; 0 where there is none or it is not finite."""
    return np.nan_to_num(rows[..., NORM], nan=0.0, posinf=0.0, neginf=0.0)


def projected_size(rows: Array) -> Array:
    """2-norm as the projection estimates it: of differences of rows, whose statistics mean nothing."""
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.sqrt(np.mean(rows[..., PROJECTED:] ** 2, axis=-1))
    result: Array = np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)
    return result


def relative(difference: Array, whole: Array) -> Array:
    """`difference / whole`; 0 where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Array = np.where(difference == 0, 0.0, difference / whole)
    return result


def ratio(difference: float, whole: float) -> float:
    """As `relative`, of two numbers."""
    return 0.0 if difference == 0 else math.inf if whole == 0 else difference / whole
