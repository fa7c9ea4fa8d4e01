"""Image datasets that give the same pixels on every backend: real digits, an image folder, made-up images.

Images are decoded with Pillow and augmented here, not with torchvision. torchvision's binary is tied to one build of
torch and does not import beside every vendor's ("operator torchvision::nms does not exist" beside a CPU build), and a
comparison of hardware needs identical pixels everywhere. Random augmentation draws from torch's CPU generator, which
every backend has, so a seed gives the same crops on all of them.

Every dataset is map-style, gives `(image, label)` with a float32 image of shape (3, size, size) and an int label, and
has `.name` ("digits", "folder" or "synthetic") and `.num_classes`.
"""

from __future__ import annotations

from accel.data._base import ImageDataset
from accel.data._digits import digits
from accel.data._folder import image_folder
from accel.data._parse import parse
from accel.data._synthetic import synthetic

__all__ = ["ImageDataset", "digits", "image_folder", "parse", "synthetic"]
