"""What all datasets of the package have in common: the attributes, the size check, the optional packages."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.utils.data import Dataset

from accel.errors import ArgumentError, DataError


class ImageDataset(Dataset[tuple[torch.Tensor, int]]):
    """A map-style set of `(image, label)`: float32 image (3, `size`, `size`), label in [0, `num_classes`)."""

    name: str
    num_classes: int
    size: int

    def __len__(self) -> int:
        raise NotImplementedError


def check_at_least_one(**values: object) -> None:
    """Raise `ArgumentError` for the first keyword that is not an int of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name} is {value!r}; expected a whole number of at least 1")


def optional(module: str, package: str, what: str) -> Any:
    """Import `module`; raise `DataError` that names `package` and the extra when it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(
            f"{what} needs {package}, which cannot be imported ({error}); "
            "install it with: pip install 'accel-torch[vision]'"
        ) from error
