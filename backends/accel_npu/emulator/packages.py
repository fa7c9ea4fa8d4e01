"""The torch and torch_npu that the emulator is built for, found without importing either, and refused where the pair
cannot work: a mismatch of versions, or a build of torch that carries another accelerator.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from accel import _probe
from accel.errors import BackendError

_BUILT_WITH = re.compile(r"^(cuda|hip|xpu)\s*(?::[^=\n]*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True)
class Packages:
    """Versions, and the folders that the packages lie in."""

    torch: str
    torch_npu: str
    torch_folder: Path
    torch_npu_folder: Path


def find() -> Packages:
    """The installed pair. Raises `BackendError` when one is absent, they do not pair, or torch is no CPU build."""
    folders = {name: _folder(name) for name in ("torch", "torch_npu")}
    versions = _probe.versions("torch", "torch_npu")
    absent = [name for name in folders if folders[name] is None or name not in versions]
    if absent:
        raise BackendError(
            f"{' and '.join(absent)} not installed here: the NPU emulator runs the released torch_npu; install the CPU "
            "build of torch and the torch_npu of the same version, such as "
            "`pip install torch==2.13.0+cpu torch_npu==2.13.0`"
        )
    torch, torch_npu = folders["torch"], folders["torch_npu"]
    assert torch is not None
    assert torch_npu is not None
    check(versions["torch"], versions["torch_npu"], torch)
    return Packages(versions["torch"], versions["torch_npu"], torch, torch_npu)


def check(torch: str, torch_npu: str, torch_folder: Path) -> None:
    """Raises `BackendError` for a pair that cannot work, before either is loaded."""
    if _minor(torch) != _minor(torch_npu):
        raise BackendError(
            f"torch {torch} and torch_npu {torch_npu} do not pair: torch_npu works only with the torch of the same "
            f"minor version; install torch {_minor(torch_npu)} (its CPU build) or torch_npu {_minor(torch)}"
        )
    # torch_npu 2.13 refuses a torch that has another accelerator ("Two accelerators cannot be used at the same time");
    # torch_npu 2.14 ends the process in C++ before it can say so ("Duplicated key pinned_reserve_segment_size_mb").
    carried = carries(torch_folder)
    if carried is not None:
        raise BackendError(
            f"torch {torch} is a {carried} build, with which torch_npu {torch_npu} fails or ends the process: install "
            f"the CPU build, `torch=={torch.partition('+')[0]}+cpu` from PyTorch's index of CPU wheels (on x86-64 pip "
            "alone brings the CUDA build)"
        )


def carries(torch_folder: Path) -> str | None:
    """The accelerator that torch was built with, as `torch/version.py` says, such as `CUDA 13.0`; None: a CPU build."""
    found = _BUILT_WITH.search((torch_folder / "version.py").read_text())
    return f"{found.group(1).upper()} {found.group(2)}" if found else None


def _minor(version: str) -> str:
    return ".".join(version.partition("+")[0].split(".")[:2])


def _folder(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
