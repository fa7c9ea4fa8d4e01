"""`image_folder`: images in one sub-folder a class, decoded with Pillow.

Owns the layout of the tree and the split; the pixels are made in `accel.data._pixels`. Made for ImageNet's 1.3 million
files: names are kept in two arrays, which loader workers share with the process that forked them. A list of strings
would be copied into each of them little by little, since reading a Python object writes its reference count.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

from accel.data import _pixels
from accel.data._base import ImageDataset, check_at_least_one
from accel.errors import DataError

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_HELD_OUT_PERCENT = 20


def image_folder(path: str | os.PathLike[str], train: bool, size: int = 224) -> ImageDataset:
    """The training or evaluation part of a folder of images, as (3, `size`, `size`) float32 images.

    With both `path/train` and `path/val`, those two are the parts. Otherwise `path` itself holds the classes and one
    image in five is held out by a hash of its class and file name, so the split never depends on the order or on other
    files. Classes are the sub-folders in sorted order; hidden ones are left out. Training images get a random resized
    crop and a random flip, evaluation images a resize and a centre crop; both are normalised by ImageNet's mean and
    deviation.

    Only names are read here. A file that turns out not to be a readable image raises `DataError` with its name when it
    is decoded. Raises `DataError` for a folder that is absent, unreadable or empty, for a class folder without images
    and for a part without images; `ArgumentError` for a `size` below 1.
    """
    check_at_least_one(size=size)
    _pixels.require_pillow()
    root = Path(path)
    classes = _subfolders(root)
    if {"train", "val"} <= set(classes):
        classes = _subfolders(root / "train")
        part = root / ("train" if train else "val")
        present = _subfolders(part)
        unknown = sorted(set(present) - set(classes))
        if unknown:
            raise DataError(f"{part} has the class folder {unknown[0]!r}, which {root / 'train'} does not have")
        files = [(name, classes.index(label)) for label in present for name in _images(part / label)]
    else:
        files = [
            (name, index)
            for index, label in enumerate(classes)
            for name in _images(root / label)
            if _held_out(label, name) != train
        ]
    if not files:
        kind = "training" if train else "evaluation"
        raise DataError(f"{root}: no image falls in the {kind} part; add images or make {root}/train and {root}/val")
    return _Folder(files, len(classes), size, train)


class _Folder(ImageDataset):
    name = "folder"

    def __init__(self, files: list[tuple[str, int]], num_classes: int, size: int, train: bool) -> None:
        self.num_classes, self.size = num_classes, size
        self._names = np.array([os.fsencode(name) for name, _ in files])  # bytes of one width, the longest name's
        self._labels = np.array([label for _, label in files], dtype=np.int32)
        self._to_square = _pixels.random_square if train else _pixels.centre_square

    @property
    def files(self) -> list[tuple[str, int]]:
        """(path, label) of every image, in order."""
        return [self.file(index) for index in range(len(self))]

    def file(self, index: int) -> tuple[str, int]:
        """Path and label of one image."""
        return os.fsdecode(self._names[index].item()), int(self._labels[index])

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        name, label = self.file(index)
        return _pixels.normalise(self._to_square(_pixels.decode(name), self.size)), label


def _subfolders(root: Path) -> list[str]:
    """Names of the class folders in `root`, sorted."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"the image folder {root} cannot be read: {error.strerror or error}") from error
    if not names:
        raise DataError(f"the image folder {root} has no class folders; expected {root}/CLASS/IMAGE.jpg")
    return names


def _images(folder: Path) -> list[str]:
    """Paths of the images below `folder`, sorted; at least one."""

    def refuse(error: OSError) -> None:
        raise DataError(f"the class folder {error.filename} cannot be read: {error.strerror or error}") from error

    found = [
        f"{where}{os.sep}{name}"
        for where, _, names in os.walk(folder, onerror=refuse)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith(".")
    ]
    if not found:
        raise DataError(
            f"the class folder {folder} has no images ({' '.join(SUFFIXES)}); add some or remove the folder"
        )
    return sorted(found)


def _held_out(label: str, name: str) -> bool:
    digest = hashlib.blake2b(f"{label}/{name.rpartition(os.sep)[2]}".encode("utf-8", "surrogateescape"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") % 100 < _HELD_OUT_PERCENT
