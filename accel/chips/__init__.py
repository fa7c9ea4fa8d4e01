"""Chips: what the table of this package knows of them, which one a driver's name means, and utilisation against a peak.

`chips.json` beside this file is the table: every value has its unit, sources and confidence, and what contradicts it.
Peaks are dense; those with sparsity are kept apart and are never a denominator. A chip that is not in the table is
None with a reason, never a neighbour. Nothing here imports torch.
"""

from __future__ import annotations

from accel.chips._recognise import Recognition, recognise
from accel.chips._table import CONFIDENCES, Chip, Price, Value, get, suggestion, table
from accel.chips._utilisation import Utilisation, utilisation

__all__ = [
    "CONFIDENCES",
    "Chip",
    "Price",
    "Recognition",
    "Utilisation",
    "Value",
    "get",
    "recognise",
    "suggestion",
    "table",
    "utilisation",
]
