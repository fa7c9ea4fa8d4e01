"""`parse`: from the text that a command line takes for its data to a training and an evaluation set."""

from __future__ import annotations

import difflib

from accel.data._base import ImageDataset
from accel.data._digits import digits
from accel.data._folder import image_folder
from accel.data._synthetic import synthetic
from accel.errors import ArgumentError

KINDS = ("digits", "folder:PATH", "synthetic")


def parse(
    spec: str, size: int | None = None, *, num_classes: int = 1000, length: int = 1280, seed: int = 0
) -> tuple[ImageDataset, ImageDataset]:
    """The training and the evaluation set of `spec`: "digits", "folder:PATH" or "synthetic".

    `size` in pixels defaults to 32 for digits and 224 otherwise. `num_classes`, `length` and `seed` describe synthetic
    images; their evaluation set has a tenth of `length` and the next seed. Raises `ArgumentError` for an unknown kind
    and what the datasets raise.
    """
    kind, _, path = spec.partition(":")
    if kind == "digits" and spec == kind:
        pixels = 32 if size is None else size
        return digits(pixels, train=True), digits(pixels, train=False)
    pixels = 224 if size is None else size
    if kind == "folder" and path:
        return image_folder(path, train=True, size=pixels), image_folder(path, train=False, size=pixels)
    if kind == "synthetic" and spec == kind:
        held_out = max(1, length // 10)
        return synthetic(pixels, num_classes, length, seed), synthetic(pixels, num_classes, held_out, seed + 1)
    near = difflib.get_close_matches(spec, KINDS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(f"data is {spec!r}; expected one of {', '.join(KINDS)}{hint}")
