"""How the emulator is built: once, whole or not at all, by one process while others wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel.errors import BackendError
from accel_npu.emulator import build, packages, symbols

# One small library instead of all: what is tested is the cache, not the compiler.
BUILD = """
import sys
from accel_npu.emulator import build, packages
build.LIBRARIES = {"ascendcl": ("common",), "hccl": (), "opapi": ()}
build.RUNTIME = ("common",)
build._precompile = build._load = lambda *arguments: None
print(build.build(packages.find(), rebuild="--rebuild" in sys.argv))
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("ACCEL_EMULATE_NPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", BUILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def test_two_processes_that_need_the_same_build_make_it_once_and_a_third_takes_it(small: Any, tmp_path: Path) -> None:
    ended = [process.communicate(timeout=100) for process in (small(), small())]
    assert ended[0][0] == ended[1][0], ended
    assert sum("compiling" in errors for _, errors in ended) == 1
    folder = Path(ended[0][0].strip())
    assert {path.name for path in folder.iterdir()} == {"libascendcl.so", "libhccl.so", "libopapi.so", "native.txt"}
    assert [path for path in folder.parent.iterdir() if path.name.startswith("building")] == []
    out, errors = small().communicate(timeout=100)
    assert (Path(out.strip()), errors) == (folder, "")
    inode = (folder / "libascendcl.so").stat().st_ino
    out, errors = small("--rebuild").communicate(timeout=100)
    assert Path(out.strip()) == folder
    assert (folder / "libascendcl.so").stat().st_ino != inode


def test_a_compiler_that_fails_is_quoted_and_leaves_no_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho it broke >&2; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("ACCEL_EMULATE_NPU_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BackendError, match=r"(?s)could not build the NPU emulator, exit code 3:.*it broke"):
        build.build(packages.find())
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_the_emulator_has_every_symbol_that_the_installed_torch_npu_links(capsys: pytest.CaptureFixture[str]) -> None:
    libraries = Path(os.environ["ACCEL_EMULATE_NPU_LIBRARIES"])
    assert symbols.report(libraries, []) == 0
    out = capsys.readouterr().out
    assert "0 lacking" in out
    # Needed by features that the emulator has not: symmetric memory windows, and starting from a cluster file.
    assert "HcclAllReduce" not in out
    needs = symbols._installed()
    assert {"aclrtMalloc", "aclrtMapMem", "MsprofReportApi"} <= needs.linked
    assert {"HcclAllReduce", "HcclBatchSendRecv", "HcclReduceScatterV"} <= needs.collectives
    assert {"aclnnAdd", "aclnnConvolution"} <= needs.operators
