"""Thousands of real JPEG files: what is read of them, in this process and in loader workers."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from accel import data
from accel.data import _pixels
from accel.errors import DataError
from tests.pictures import ORIENTATION, tree

CLASSES, EACH = 12, 250


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree(tmp_path_factory.mktemp("photos"), CLASSES, EACH)


def test_every_file_falls_in_one_part_with_its_folders_label(photos: Path) -> None:
    train, held_out = (data.image_folder(photos, part, 8) for part in (True, False))
    assert len(train) + len(held_out) == CLASSES * EACH
    together = train.files + held_out.files
    assert {name for name, _ in together} == {str(path) for path in photos.glob("*/*.jpg")}
    assert all(Path(name).parent.name == f"class_{label:02}" for name, label in together)
    assert 0.15 < len(held_out) / len(together) < 0.25


def test_workers_decode_each_file_once_and_give_what_this_process_gives(photos: Path) -> None:
    held_out = data.image_folder(photos, False, 8)
    loader = DataLoader(held_out, batch_size=64, num_workers=2)
    images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert labels.tolist() == [label for _, label in held_out.files]
    assert images.isfinite().all()
    for index in range(0, len(held_out), 37):
        assert torch.equal(images[index], held_out[index][0])


def test_a_set_of_a_million_names_takes_little_memory_and_no_objects(tmp_path: Path) -> None:
    names = [(f"/data/imagenet/train/n{i % 1000:08}/n{i % 1000:08}_{i}.JPEG", i % 1000) for i in range(100_000)]
    folder = data._folder._Folder(names, 1000, 224, True)
    assert folder.files[99_999] == names[99_999]
    assert len(folder) == 100_000
    # Two arrays and a few small values: a worker that reads them writes nothing.
    assert len(pickle.dumps(folder)) < 8_000_000
    assert not [name for name, value in vars(folder).items() if isinstance(value, (list, dict))]


def test_a_name_that_is_not_utf8_is_read(tmp_path: Path) -> None:
    for label in ("a", "b"):
        for index in range(10):
            path = tmp_path / label / f"\udce9t\udce9_{index}.jpg"  # Latin-1's e with an acute accent
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (8, 8)).save(path)
    assert len([item for part in (True, False) for item in data.image_folder(tmp_path, part, 8)]) == 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photograph_stands_upright(tmp_path: Path, orientation: int) -> None:
    """EXIF says how to turn what is stored; here what is stored is what a camera held that way stores."""
    upright = np.zeros((40, 60, 3), dtype=np.uint8)
    upright[:20, :30] = 255  # top left
    undo = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    path = tmp_path / "x.jpg"
    Image.fromarray(np.ascontiguousarray(undo[orientation])).save(path, quality=100, exif=exif)
    seen = np.asarray(_pixels.decode(str(path)))
    assert seen.shape == upright.shape
    assert np.abs(seen.astype(int) - upright.astype(int)).mean() < 3


def test_white_in_cmyk_and_grey_is_white(tmp_path: Path) -> None:
    for mode in ("CMYK", "L", "RGB"):
        Image.new("RGB", (16, 16), (255, 255, 255)).convert(mode).save(tmp_path / "x.jpg")
        assert np.asarray(_pixels.decode(str(tmp_path / "x.jpg"))).min() >= 254


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8))
    image.putpalette([0, 0, 0, 200, 100, 50] * 128)
    image.putpixel((0, 0), 1)
    image.save(tmp_path / "x.png", transparency=bytes([0, 128] * 128))
    assert _pixels.decode(str(tmp_path / "x.png")).getpixel((0, 0)) == (200, 100, 50)


def test_one_truncated_file_among_thousands_is_named_in_one_line(photos: Path) -> None:
    broken = photos / "class_07" / "00100.jpg"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    try:
        for part in (True, False):
            folder = data.image_folder(photos, part, 8)
            if (str(broken), 7) in folder.files:
                with pytest.raises(DataError, match=r"00100\.jpg cannot be decoded") as caught:
                    for _ in DataLoader(folder, batch_size=64, num_workers=2):
                        pass
                assert caught.value.line.startswith(f"{broken} cannot be decoded as an image: ")
                assert "truncated" in caught.value.line
    finally:
        broken.write_bytes(whole)
