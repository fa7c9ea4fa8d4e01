"""The datasets: what they hold, that they never vary, and what a bad folder or spec is answered with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from accel import data
from accel.data import _folder, _pixels
from accel.errors import ArgumentError, DataError


def picture(path: Path, seed: int = 0, width: int = 40, height: int = 30, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


@pytest.fixture
def split_folder(tmp_path: Path) -> Path:
    """PATH/train and PATH/val with two classes."""
    for part, count in (("train", 3), ("val", 2)):
        for label in ("cat", "dog"):
            for i in range(count):
                picture(tmp_path / part / label / f"{i}.png", seed=i)
    return tmp_path


@pytest.fixture
def flat_folder(tmp_path: Path) -> Path:
    """PATH itself holds two classes of twenty images."""
    for label in ("a", "b"):
        for i in range(20):
            picture(tmp_path / label / f"{i}.png", seed=i, width=8, height=8)
    return tmp_path


class TestDigits:
    def test_hold_out_360_of_1797_real_images_with_every_class_alike(self) -> None:
        train, test = data.digits(8, train=True), data.digits(8, train=False)
        assert (len(train), len(test)) == (1437, 360)
        assert (train.name, train.num_classes, train.size) == ("digits", 10, 8)
        counts = Counter(label for _, label in (test[i] for i in range(360)))
        assert set(counts) == set(range(10))
        assert max(counts.values()) - min(counts.values()) <= 2

    def test_parts_are_disjoint_and_always_the_same(self) -> None:
        from sklearn.datasets import load_digits

        train, test = data.digits(8, train=True), data.digits(8, train=False)
        together = Counter(
            x[0].numpy().tobytes() for part in (train, test) for x, _ in (part[i] for i in range(len(part)))
        )
        assert sum(together.values()) == 1797
        assert len(together) == len({image.tobytes() for image in load_digits().images})
        again = data.digits(8, train=False)
        assert all(torch.equal(test[i][0], again[i][0]) and test[i][1] == again[i][1] for i in range(360))

    def test_images_are_three_equal_normalised_channels(self) -> None:
        train = data.digits(32)
        images = torch.stack([train[i][0] for i in range(len(train))])
        assert images.shape == (1437, 3, 32, 32)
        assert images.dtype == torch.float32
        assert torch.equal(images[:, 0], images[:, 2])
        assert abs(images.mean()) < 0.01
        assert 0.8 < images.std() < 1.05  # interpolation smooths a little of the deviation away

    def test_size_below_one_is_refused(self) -> None:
        with pytest.raises(ArgumentError, match="size is 0; expected a whole number"):
            data.digits(0)


class TestSynthetic:
    def test_an_item_depends_on_seed_and_index_only(self) -> None:
        a, b = data.synthetic(8, 10, 20, seed=1), data.synthetic(8, 10, 1000, seed=1)
        assert torch.equal(a[7][0], b[7][0])
        assert a[7][1] == b[7][1]
        assert not torch.equal(a[7][0], a[8][0])
        assert not torch.equal(a[7][0], data.synthetic(8, 10, 20, seed=2)[7][0])

    def test_items_are_the_same_in_worker_processes(self) -> None:
        dataset = data.synthetic(4, 10, 6)
        here = torch.stack([x for x, _ in (dataset[i] for i in range(6))])
        there = torch.cat([x for x, _ in DataLoader(dataset, batch_size=2, num_workers=2)])
        assert torch.equal(here, there)

    def test_shape_labels_and_end(self) -> None:
        dataset = data.synthetic(16, 3, 50)
        image, _ = dataset[0]
        assert (image.shape, image.dtype, len(dataset), dataset.num_classes) == ((3, 16, 16), torch.float32, 50, 3)
        assert {label for _, label in (dataset[i] for i in range(50))} == {0, 1, 2}
        with pytest.raises(IndexError, match="50"):
            dataset[50]

    @pytest.mark.parametrize("bad", [{"size": 0}, {"num_classes": 0}, {"length": -1}, {"length": 2.5}, {"seed": -1}])
    def test_bad_arguments_are_refused_by_name(self, bad) -> None:
        with pytest.raises(ArgumentError, match=next(iter(bad))):
            data.synthetic(**bad)


class TestImageFolder:
    def test_train_and_val_folders_are_the_two_parts(self, split_folder) -> None:
        train, val = data.image_folder(split_folder, True, 16), data.image_folder(split_folder, False, 16)
        assert (len(train), len(val), train.num_classes, train.name) == (6, 4, 2, "folder")
        assert [label for _, label in (val[i] for i in range(4))] == [0, 0, 1, 1]
        image, label = train[0]
        assert (image.shape, image.dtype, label) == ((3, 16, 16), torch.float32, 0)

    def test_one_tree_is_split_by_file_name_whatever_else_is_there(self, flat_folder) -> None:
        train, held_out = (data.image_folder(flat_folder, part, 8).files for part in (True, False))
        assert len(train) + len(held_out) == 40
        assert not set(train) & set(held_out)
        assert 2 <= len(held_out) <= 16
        picture(flat_folder / "a" / "new.png")
        assert set(data.image_folder(flat_folder, False, 8).files) >= set(held_out)
        assert set(data.image_folder(flat_folder, True, 8).files) >= set(train)

    def test_classes_are_sorted_and_hidden_or_foreign_names_left_out(self, flat_folder) -> None:
        (flat_folder / ".ipynb_checkpoints").mkdir()
        (flat_folder / "README.txt").write_text("not a class")
        (flat_folder / "a" / "notes.txt").write_text("not an image")
        picture(flat_folder / "a" / ".hidden.png")
        picture(flat_folder / "b" / "deeper" / "x.PNG")
        train, held_out = (data.image_folder(flat_folder, part, 8) for part in (True, False))
        files = train.files + held_out.files
        assert train.num_classes == 2
        assert sorted({label for _, label in files}) == [0, 1]
        assert all((f"{os.sep}a{os.sep}" in name) == (label == 0) for name, label in files)
        assert len(files) == 41

    def test_evaluation_pixels_never_vary(self, split_folder) -> None:
        val = data.image_folder(split_folder, False, 16)
        first = val[0][0]
        torch.manual_seed(1)
        assert torch.equal(val[0][0], first)

    def test_training_pixels_follow_torchs_generator(self, split_folder) -> None:
        train = data.image_folder(split_folder, True, 16)

        def draw(seed: int) -> torch.Tensor:
            torch.manual_seed(seed)
            return torch.stack([train[0][0] for _ in range(4)])

        assert torch.equal(draw(3), draw(3))
        assert not torch.equal(draw(3), draw(4))
        assert len({x.numpy().tobytes() for x in draw(3)}) == 4

    def test_workers_repeat_their_augmentation_for_a_seed(self, split_folder) -> None:
        train = data.image_folder(split_folder, True, 16)

        def draw() -> torch.Tensor:
            torch.manual_seed(5)
            return torch.cat([x for x, _ in DataLoader(train, batch_size=2, num_workers=2)])

        assert torch.equal(draw(), draw())

    @pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK"])
    def test_other_colour_modes_become_three_channels(self, tmp_path, mode) -> None:
        suffix = "jpg" if mode == "CMYK" else "png"
        name = picture(tmp_path / f"x.{suffix}", mode=mode)
        assert _pixels.normalise(_pixels.centre_square(_pixels.decode(str(name)), 8)).shape == (3, 8, 8)

    def test_centre_crop_keeps_seven_eighths_of_the_shorter_side(self) -> None:
        # A wide image whose left half is black: after a centre crop the change stands in the middle.
        pixels = np.zeros((64, 256, 3), dtype=np.uint8)
        pixels[:, 128:] = 255
        square = np.asarray(_pixels.centre_square(Image.fromarray(pixels), 56))
        assert square.shape == (56, 56, 3)
        assert (square[:, :27] == 0).all()
        assert (square[:, 29:] == 255).all()

    def test_white_becomes_the_normalised_one(self) -> None:
        white = _pixels.normalise(Image.new("RGB", (2, 2), (255, 255, 255)))
        assert white[:, 0, 0].tolist() == pytest.approx([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225])

    @pytest.mark.parametrize("shape", [(1, 1), (2, 400), (400, 2), (500, 375)])
    def test_random_boxes_stay_inside_any_shape(self, shape) -> None:
        torch.manual_seed(0)
        for _ in range(50):
            left, top, right, bottom = _pixels._random_box(*shape)
            assert 0 <= left < right <= shape[0]
            assert 0 <= top < bottom <= shape[1]

    def test_random_boxes_cover_the_range_of_areas(self) -> None:
        torch.manual_seed(0)
        boxes = [_pixels._random_box(500, 375) for _ in range(500)]
        shares = [(r - left) * (b - t) / (500 * 375) for left, t, r, b in boxes]
        assert min(shares) >= 0.079
        assert min(shares) < 0.12
        assert max(shares) > 0.9


class TestBadFolder:
    def test_absent_folder(self, tmp_path) -> None:
        with pytest.raises(DataError, match=r"nowhere cannot be read: No such file"):
            data.image_folder(tmp_path / "nowhere", True)

    def test_a_file_instead_of_a_folder(self, tmp_path) -> None:
        name = picture(tmp_path / "x.png")
        with pytest.raises(DataError, match=r"x\.png cannot be read: Not a directory"):
            data.image_folder(name, True)

    def test_unreadable_folder(self, flat_folder) -> None:
        flat_folder.chmod(0o000)
        try:
            if os.access(flat_folder, os.R_OK):  # root reads everything: ask as somebody else
                with pytest.raises(DataError, match="cannot be read: Permission denied"):
                    as_nobody(lambda: data.image_folder(flat_folder, True))
            else:
                with pytest.raises(DataError, match="cannot be read: Permission denied"):
                    data.image_folder(flat_folder, True)
        finally:
            flat_folder.chmod(0o700)

    def test_unreadable_class_folder(self, flat_folder) -> None:
        walk = os.walk

        def refuse(top, onerror, **rest):
            onerror(PermissionError(13, "Permission denied", str(top)))
            return walk(top, onerror=onerror, **rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "walk", refuse)
            with pytest.raises(DataError, match=r"class folder .*a cannot be read: Permission denied"):
                data.image_folder(flat_folder, True)

    def test_empty_folder(self, tmp_path) -> None:
        with pytest.raises(DataError, match="has no class folders; expected"):
            data.image_folder(tmp_path, True)

    @pytest.mark.parametrize("part", ["train", "val"])
    def test_class_folder_without_images(self, split_folder, part) -> None:
        (split_folder / "train" / "empty").mkdir(exist_ok=True)
        (split_folder / part / "empty").mkdir(exist_ok=True)
        with pytest.raises(DataError, match=rf"class folder .*{part}.empty has no images"):
            data.image_folder(split_folder, part == "train")

    def test_class_that_only_val_has(self, split_folder) -> None:
        picture(split_folder / "val" / "cow" / "0.png")
        with pytest.raises(DataError, match=r"class folder 'cow', which .*train does not have"):
            data.image_folder(split_folder, False)

    def test_class_that_only_train_has_keeps_labels_right(self, split_folder) -> None:
        picture(split_folder / "train" / "bee" / "0.png")
        val = data.image_folder(split_folder, False, 8)
        assert val.num_classes == 3
        assert [label for _, label in val.files] == [1, 1, 2, 2]

    def test_part_without_images(self, tmp_path) -> None:
        picture(tmp_path / "only" / "one.png")
        empty_part = _folder._held_out("only", "one.png")  # a single image: one of the parts has none
        with pytest.raises(DataError, match=r"no image falls in the .* part; .* make .*train and .*val"):
            data.image_folder(tmp_path, train=empty_part)

    @pytest.mark.parametrize(
        "content",
        [b"", b"this is text", b"\x89PNG\r\n\x1a\nbroken", b"\xff\xd8\xff\xe0short"],
        ids=["empty", "text", "png", "jpg"],
    )
    def test_corrupt_image_is_named_when_decoded(self, split_folder, content) -> None:
        broken = split_folder / "train" / "dog" / "9.png"
        broken.write_bytes(content)
        train = data.image_folder(split_folder, True, 8)
        with pytest.raises(
            DataError, match=r"dog.9\.png cannot be decoded as an image: .*; repair or remove"
        ) as caught:
            train[len(train) - 1]
        assert "\n" not in str(caught.value)

    def test_truncated_image_is_named(self, split_folder) -> None:
        whole = picture(split_folder / "train" / "dog" / "9.jpg", width=200, height=200)
        whole.write_bytes(whole.read_bytes()[:-2000])
        train = data.image_folder(split_folder, True, 8)
        with pytest.raises(DataError, match=r"9\.jpg cannot be decoded .*truncated"):
            train[len(train) - 1]

    def test_file_that_vanished_is_named(self, split_folder) -> None:
        train = data.image_folder(split_folder, True, 8)
        Path(train.files[0][0]).unlink()
        with pytest.raises(DataError, match=r"cat.0\.png cannot be decoded as an image: .*No such file"):
            train[0]

    def test_sixteen_bit_image_is_refused_rather_than_clipped(self, split_folder) -> None:
        Image.fromarray(np.full((8, 8), 40000, dtype=np.uint16)).save(split_folder / "train" / "cat" / "9.png")
        train = data.image_folder(split_folder, True, 8)
        with pytest.raises(DataError, match=r"9\.png has more than 8 bits a channel"):
            train[3]

    def test_corrupt_image_in_a_worker_is_still_a_data_error(self, split_folder) -> None:
        (split_folder / "val" / "cat" / "0.png").write_bytes(b"text")
        loader = DataLoader(data.image_folder(split_folder, False, 8), batch_size=1, num_workers=1)
        with pytest.raises(DataError, match=r"cat.0\.png cannot be decoded"):
            list(loader)

    @pytest.mark.parametrize("size", [0, -4, True])
    def test_bad_size(self, split_folder, size) -> None:
        with pytest.raises(ArgumentError, match="size is"):
            data.image_folder(split_folder, True, size)


class TestParse:
    def test_each_kind(self, split_folder) -> None:
        for spec, name, lengths in (
            ("digits", "digits", (1437, 360)),
            (f"folder:{split_folder}", "folder", (6, 4)),
            ("synthetic", "synthetic", (1280, 128)),
        ):
            train, test = data.parse(spec, size=8)
            assert (train.name, len(train), len(test)) == (name, *lengths)
            assert train.num_classes == test.num_classes

    def test_size_defaults_by_kind(self, split_folder) -> None:
        assert data.parse("digits")[0].size == 32
        assert data.parse("synthetic")[0].size == 224
        assert data.parse(f"folder:{split_folder}")[1].size == 224

    def test_synthetic_parts_differ(self) -> None:
        train, test = data.parse("synthetic", 4, num_classes=5, length=30, seed=2)
        assert (len(train), len(test), test.num_classes) == (30, 3, 5)
        assert not torch.equal(train[0][0], test[0][0])

    @pytest.mark.parametrize(
        ("spec", "hint"),
        [
            ("digit", "did you mean 'digits'"),
            ("synthetics", "did you mean 'synthetic'"),
            ("folder:", "did you mean 'folder:PATH'"),
            ("digits:8", "did you mean 'digits'"),
            ("", "expected one of"),
            ("imagenet", "expected one of"),
        ],
    )
    def test_unknown_kind_lists_what_exists(self, spec, hint) -> None:
        with pytest.raises(ArgumentError, match=r"digits, folder:PATH, synthetic") as caught:
            data.parse(spec)
        assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("package", "call"), [("sklearn.datasets", "digits(8)"), ("PIL.Image", "image_folder('.', True)")]
)
def test_missing_optional_package_names_the_extra(package, call) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
from accel import data, errors
try:
    data.{call}
except errors.DataError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "pip install 'accel-torch[vision]'" in out.stdout


def as_nobody(call) -> None:
    """Run `call` with the file permissions of a user who owns nothing."""
    os.seteuid(65534)
    try:
        call()
    finally:
        os.seteuid(0)
