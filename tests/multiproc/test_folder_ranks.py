"""Real JPEG files over three ranks, decoded in loader workers: each once, whatever their number divides by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import accel
from accel import data
from accel.testing.ranks import RankFailure, run_ranks
from tests.pictures import tree

CPU = {"ACCEL_BACKEND": "cpu"}


class Indexed(Dataset[tuple[torch.Tensor, int, int]]):
    """A folder whose items carry their index."""

    def __init__(self, folder: data.ImageDataset) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        image, label = self.folder[index]
        return image, label, index


def _evaluated(photos: str) -> Any:
    with accel.init(backend="cpu") as s:
        held_out = data.image_folder(photos, False, 16)
        dataset = Indexed(held_out)
        seen: list[tuple[int, int, float]] = []
        loader = DataLoader(dataset, 8, sampler=s.sampler(dataset, shuffle=False), num_workers=2)
        for images, labels, indices in s.batches(loader, train=False):
            sums = images.sum((1, 2, 3)).tolist()
            seen += zip(indices.tolist(), labels.tolist(), sums, strict=True)
        return seen


def test_evaluation_decodes_each_file_once_over_three_ranks(tmp_path: Path) -> None:  # T19
    photos = tree(tmp_path / "photos", classes=12, each=50)
    held_out = data.image_folder(photos, False, 16)
    assert len(held_out) % 3, "it must not divide by the ranks"
    ranks = run_ranks(_evaluated, 3, str(photos), timeout=180, env=CPU)
    assert max(map(len, ranks)) - min(map(len, ranks)) == 1
    together = sorted(one for rank in ranks for one in rank)
    assert [index for index, _, _ in together] == list(range(len(held_out)))
    assert [label for _, label, _ in together] == [label for _, label in held_out.files]
    for index, _, total in together[::25]:
        assert float(held_out[index][0].sum()) == pytest.approx(total, rel=1e-4)


def _trained(photos: str) -> Any:
    with accel.init(backend="cpu") as s:
        dataset = Indexed(data.image_folder(photos, True, 16))
        loader = DataLoader(dataset, 4, sampler=s.sampler(dataset), num_workers=1, drop_last=True)
        return [[i for _, _, indices in s.batches(loader, epoch=epoch) for i in indices.tolist()] for epoch in (0, 1)]


def test_training_shares_are_disjoint_and_change_with_the_epoch(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", classes=3, each=20)
    ranks = run_ranks(_trained, 2, str(photos), timeout=120, env=CPU)
    for epoch in (0, 1):
        taken = [index for rank in ranks for index in rank[epoch]]
        assert len(taken) == len(set(taken))
        assert len(ranks[0][epoch]) == len(ranks[1][epoch])
    assert ranks[0][0] != ranks[0][1]


def test_a_file_that_one_rank_cannot_decode_is_named_and_ends_all(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", classes=3, each=20)
    broken = Path(data.image_folder(photos, False).files[2][0])
    broken.write_bytes(broken.read_bytes()[:150])
    with pytest.raises(RankFailure) as caught:
        run_ranks(_evaluated, 3, str(photos), timeout=120, env=CPU)
    assert f"{broken} cannot be decoded as an image" in caught.value.ranks[2]
