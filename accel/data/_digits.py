"""`digits`: scikit-learn's handwritten digits, real images that need no download.

1797 images of 8x8 pixels in ten classes, part of scikit-learn's package (a copy of the test set of
https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel.data._base import ImageDataset, check_at_least_one, optional

HELD_OUT = 360
_SPLIT_SEED = 0
_BRIGHTEST = 16.0  # the dataset counts set pixels in 4x4 cells


def digits(size: int = 32, train: bool = True) -> ImageDataset:
    """The 1437 training or the 360 held-out digits, as (3, `size`, `size`) float32 images.

    The split is stratified by class and always the same. Images are scaled up bilinearly and normalised by the mean and
    deviation of the training part. Raises `ArgumentError` for a `size` below 1 and `DataError` without scikit-learn.
    """
    check_at_least_one(size=size)
    datasets = optional("sklearn.datasets", "scikit-learn", "the digits dataset")
    selection = optional("sklearn.model_selection", "scikit-learn", "the digits dataset")
    bunch = datasets.load_digits()
    pixels = torch.from_numpy(bunch.images).float().div_(_BRIGHTEST).unsqueeze(1)  # (1797, 1, 8, 8) in [0, 1]
    labels = torch.from_numpy(bunch.target).long()
    learn, test = selection.train_test_split(
        range(len(labels)), test_size=HELD_OUT, stratify=bunch.target, random_state=_SPLIT_SEED
    )
    deviation, mean = torch.std_mean(pixels[learn])
    part = learn if train else test
    images = functional.interpolate(pixels[part], size=(size, size), mode="bilinear", align_corners=False)
    return _Digits(images.sub_(mean).div_(deviation), labels[part])


class _Digits(ImageDataset):
    """One tensor (N, 1, size, size); the three equal channels are a view, so that large sizes stay small in memory."""

    name = "digits"
    num_classes = 10

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.size = images.shape[-1]
        self._images = images.expand(-1, 3, -1, -1)
        self._labels = labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._images[index], self._labels[index]
