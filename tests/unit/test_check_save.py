"""`Session.check_save`'s question: can a checkpoint be written there, found out without writing."""

from __future__ import annotations

import os

import pytest

from accel import _checkpoint
from accel.errors import ArgumentError


def test_a_free_name_is_fine_and_nothing_is_made(tmp_path) -> None:
    _checkpoint.check_writable(tmp_path / "new" / "deeper")
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_and_a_former_checkpoint_may_be_replaced(tmp_path) -> None:
    _checkpoint.save(tmp_path / "old", {"epoch": 1}, ranks={}, meta={})
    (tmp_path / "empty").mkdir()
    _checkpoint.check_writable(tmp_path / "old")
    _checkpoint.check_writable(tmp_path / "empty")
    assert _checkpoint.read(tmp_path / "old").objects == {"epoch": 1}


def test_a_file_or_a_folder_of_other_things_is_refused_with_exit_code_2(tmp_path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    for path, reason in (("file", "is a file"), ("folder", "no checkpoint of accel"), ("file/below", "is a file")):
        with pytest.raises(ArgumentError, match=reason) as caught:
            _checkpoint.check_writable(tmp_path / path)
        assert caught.value.exit_code == 2


def test_a_place_that_may_not_be_looked_into_is_refused(tmp_path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    user = os.geteuid()
    if user == 0:  # root may look everywhere: ask as somebody else
        os.seteuid(65534)
    try:
        with pytest.raises(ArgumentError, match=r"cannot be written .*Permission denied"):
            _checkpoint.check_writable(closed / "out")
    finally:
        os.seteuid(user)
        closed.chmod(0o700)


def test_a_place_that_takes_no_files_is_refused_even_to_root() -> None:
    """/proc has the permission bits of a folder that root may write to, and takes nothing."""
    with pytest.raises(ArgumentError, match=r"/proc/new/deeper cannot be written"):
        _checkpoint.check_writable("/proc/new/deeper")


def test_asking_leaves_nothing_behind(tmp_path) -> None:
    _checkpoint.check_writable(tmp_path / "new" / "deeper")
    assert list(tmp_path.iterdir()) == []
