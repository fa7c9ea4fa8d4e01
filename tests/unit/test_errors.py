"""What every error of accel offers to the command line."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from accel.errors import ArgumentError, DataError


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        try:
            return int("none")
        except ValueError as error:
            raise DataError("x.png: cannot be decoded") from error


def test_line_is_the_message_without_line_breaks() -> None:
    assert ArgumentError("first\n  second").line == "first second"


def test_line_leaves_out_the_traceback_of_a_loaders_worker() -> None:
    torch.manual_seed(0)
    with pytest.raises(DataError) as caught:
        list(DataLoader(Broken(), num_workers=1))
    assert "Traceback" in str(caught.value)
    assert caught.value.line == "x.png: cannot be decoded"


def test_a_host_without_enough_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from accel import cli

    def greedy() -> None:
        raise MemoryError("Unable to allocate 10.9 TiB")

    monkeypatch.setattr(cli, "app", greedy)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "accel: the host's memory is not enough (Unable to allocate 10.9 TiB); choose a smaller batch or image size\n"
    )
