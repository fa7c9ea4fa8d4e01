"""Tests of what only NVIDIA GPUs have, as far as it can be tested without one, on any build of torch."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(["gcc", "-w", "-D_GNU_SOURCE", "-shared", "-fPIC", source, "-o", library], check=True, timeout=60)
    return library


@pytest.fixture
def machine(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`machine(gpu, ..., driver=..., cuda=..., init=..., build=...)`: a machine with these GPUs, as the files and the
    driver's library show it, and a torch built for CUDA `build` (None: a CPU build).
    """
    import accel_cuda
    from accel import _probe
    from accel_cuda import nvml

    monkeypatch.setattr(_probe, "ROOT", tmp_path)
    monkeypatch.setattr(nvml, "LIBRARY", str(nvml_library))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(
        *gpus: str,
        driver: str = "550.54.15",
        cuda: int = 12040,
        init: int = 0,
        build: str | None = "12.8",
        held: int = 0,
        busy: int = 0,
    ) -> None:
        (tmp_path / "dev").mkdir(exist_ok=True)
        for index in range(len(gpus)):
            (tmp_path / "dev" / f"nvidia{index}").touch()
        answers = [
            f"held={held}",
            f"busy={busy}",
            f"init={init}",
            f"driver={driver}",
            f"cuda={cuda}",
            *(f"gpu={gpu}" for gpu in gpus),
        ]
        monkeypatch.setenv("FAKE_NVML", ";".join(answers))
        # os.environ reaches the C library's getenv through putenv
        monkeypatch.setattr(accel_cuda, "_build", lambda: (build, "a CPU build"))

    yield make
    assert ctypes.CDLL(str(nvml_library)).fake_nvml_opened() == 0, "NVML was left open"
