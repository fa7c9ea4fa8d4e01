"""The library's settings and the one writer of vendor variables; CPU threads."""

from __future__ import annotations

import os

import pytest
import torch

from accel import _env, _threads
from accel.errors import ArgumentError


def test_unknown_setting_is_reported_with_the_nearest_match():
    (line,) = _env.unknown_settings({"ACCEL_BACKND": "cpu", "ACCELERATE_X": "1", "PATH": "", "ACCEL_BACKEND": "cpu"})
    assert "ACCEL_BACKND='cpu'" in line
    assert "did you mean ACCEL_BACKEND?" in line


def test_vendor_variable_is_never_written_over_the_users_own():
    environ = {"HCCL_EXEC_TIMEOUT": "7"}
    inforce = _env.set_vendor_variables({"HCCL_EXEC_TIMEOUT": "600", "HCCL_CONNECT_TIMEOUT": "600"}, environ)
    assert environ == {"HCCL_EXEC_TIMEOUT": "7", "HCCL_CONNECT_TIMEOUT": "600"} == inforce
    assert _env.vendor_variables_written()["HCCL_CONNECT_TIMEOUT"] == "600"
    assert "HCCL_EXEC_TIMEOUT" not in _env.vendor_variables_written()


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_bad_thread_setting_is_refused(value):
    with pytest.raises(ArgumentError, match="ACCEL_NUM_THREADS"):
        _threads.configure(1, {"ACCEL_NUM_THREADS": value})


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_threads_are_cores_over_local_ranks_unless_set(monkeypatch):  # T74
    monkeypatch.setattr(_threads, "available_cores", lambda: 8)
    assert _threads.configure(2, {}) == _threads.Threads(4, "cores // local world size")
    assert torch.get_num_threads() == 4
    assert _threads.configure(16, {}).count == 1
    assert _threads.configure(2, {"ACCEL_NUM_THREADS": "3"}) == _threads.Threads(3, "ACCEL_NUM_THREADS")
    torch.set_num_threads(2)
    assert _threads.configure(1, {"OMP_NUM_THREADS": "2"}) == _threads.Threads(2, "OMP_NUM_THREADS")


@pytest.mark.usefixtures("threads")
def test_torchruns_own_omp_num_threads_is_not_the_users(tmp_path):  # T74
    environ = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}
    parent = tmp_path / "environ"
    parent.write_bytes(b"PATH=/bin\0HOME=/\0")
    assert not _threads.user_set_omp(environ, parent)
    parent.write_bytes(b"PATH=/bin\0OMP_NUM_THREADS=1\0")
    assert _threads.user_set_omp(environ, parent)
    assert not _threads.user_set_omp(environ, tmp_path / "absent")
    assert _threads.user_set_omp({**environ, "OMP_NUM_THREADS": "4"}, tmp_path / "absent")
    assert _threads.available_cores() <= (os.cpu_count() or 1)
