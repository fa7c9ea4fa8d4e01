"""From an image file to a normalised tensor: decoding, cropping, flipping, normalising.

Owns pixels, not folders. Crops follow torchvision's RandomResizedCrop and the usual 224-of-256 centre crop. Every
random number comes from torch's CPU generator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from accel.data._base import optional
from accel.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

# Mean and deviation of ImageNet's training images, RGB in [0, 1]; the values that torchvision's reference recipes use:
# https://github.com/pytorch/vision/blob/main/references/classification/presets.py
MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
DEVIATION = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
CENTRE = 224 / 256  # share of the shorter side that evaluation keeps
AREA = (0.08, 1.0)  # share of the area that a training crop covers (Szegedy et al., https://arxiv.org/abs/1409.4842)
ASPECT = (3 / 4, 4 / 3)
_TRIES = 10


def require_pillow() -> None:
    """Raise `DataError` with the extra to install where Pillow is missing."""
    optional("PIL.Image", "Pillow", "an image folder")


def decode(name: str) -> Image:
    """The RGB image in file `name`, upright as its EXIF orientation says, without its transparency.

    Raises `DataError` naming the file when it isn't an image of 8 bits a channel.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(name) as image:
            if image.mode == "F" or image.mode.startswith("I"):
                raise DataError(f"{name} has more than 8 bits a channel (mode {image.mode}); convert it to 8 bits")
            upright = ImageOps.exif_transpose(image)
            # Pillow warns of a palette whose transparency is bytes, unless it becomes a channel first.
            return (upright.convert("RGBA") if "transparency" in upright.info else upright).convert("RGB")
    # Pillow reports broken files by these types, SyntaxError for a broken PNG among them.
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        reason = " ".join(str(error).split()).removesuffix(f" {name!r}")
        raise DataError(f"{name} cannot be decoded as an image: {reason}; repair or remove the file") from error


def random_square(image: Image, size: int) -> Image:
    """A random part of `image` scaled to `size` x `size`, mirrored half of the time."""
    from PIL.Image import Resampling, Transpose

    square = image.crop(_random_box(image.width, image.height)).resize((size, size), Resampling.BILINEAR)
    return square.transpose(Transpose.FLIP_LEFT_RIGHT) if torch.rand(()).item() < 0.5 else square


def centre_square(image: Image, size: int) -> Image:
    """The centre of `image`, its shorter side scaled to `size` / CENTRE and cut to `size` x `size`."""
    from PIL.Image import Resampling

    scale = round(size / CENTRE) / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Resampling.BILINEAR).crop((left, top, left + size, top + size))


def normalise(image: Image) -> torch.Tensor:
    """float32 (3, H, W) with ImageNet's mean and deviation taken out."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div_(255)
    return pixels.sub_(MEAN).div_(DEVIATION)


def _random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a crop with area and aspect drawn from AREA and ASPECT."""
    for _ in range(_TRIES):
        area, turn = torch.rand(2).tolist()
        target = width * height * (AREA[0] + area * (AREA[1] - AREA[0]))
        aspect = math.exp(math.log(ASPECT[0]) + turn * (math.log(ASPECT[1]) - math.log(ASPECT[0])))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(torch.randint(width - w + 1, ())), int(torch.randint(height - h + 1, ()))
            return left, top, left + w, top + h
    # An extreme shape: the largest centred box of an allowed aspect.
    w = min(width, max(1, round(height * ASPECT[1])))
    h = min(height, max(1, round(width / ASPECT[0])))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
