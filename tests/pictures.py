"""Trees of real JPEG files, as photographs come: several sizes, orientations and colour spaces, made in seconds."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

ORIENTATION = 0x0112  # EXIF's tag
SHAPES = ((48, 36), (36, 48), (64, 40))  # px, width and height
MODES = ("RGB", "RGB", "RGB", "RGB", "L", "CMYK")


def tree(root: Path, classes: int, each: int, seed: int = 0) -> Path:
    """`root/class_NN/NNNNN.jpg`: `classes` folders of `each` files, no two the same.

    Every class has a colour of its own, so that a model can learn them; one file in eight is stored turned, with the
    orientation in its EXIF, and one in three is grey or in CMYK.
    """
    generator = np.random.default_rng(seed)
    colours = [np.array([index % 3, index // 3 % 3, index // 9 % 3]) * 110 + 15 for index in range(classes)]
    for label, colour in enumerate(colours):
        folder = root / f"class_{label:02}"
        folder.mkdir(parents=True)
        for index in range(each):
            (folder / f"{index:05}.jpg").write_bytes(jpeg(generator, colour, index))
    return root


def jpeg(generator: np.random.Generator, colour: np.ndarray, index: int) -> bytes:
    """One file: `colour` under coarse noise."""
    width, height = SHAPES[index % len(SHAPES)]
    noise = generator.integers(-40, 40, (height // 4, width // 4, 3))
    coarse = np.clip(colour + noise, 0, 255).astype(np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.NEAREST).convert(MODES[index % len(MODES)])
    exif = Image.Exif()
    if index % 8 == 0:
        exif[ORIENTATION] = 1 + index // 8 % 8
    text = io.BytesIO()
    image.save(text, "JPEG", quality=85, exif=exif)
    return text.getvalue()
