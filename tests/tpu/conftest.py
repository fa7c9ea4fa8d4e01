"""Tests of accel_tpu against the released torch_tpu, in its environment, with `--backend tpu`.

There is no TPU: torch_tpu is told that there is one chip, so that it registers its device with torch. What needs no
running client is then the real thing.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--backend") != "tpu" else None


@pytest.fixture(scope="session")
def registered():
    """torch, with the device type `tpu` in it."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on speed, and deprecations in what torch_tpu imports
        from torch_tpu import _loader
        from torch_tpu._internal.utils import hardware

    patch = pytest.MonkeyPatch()
    patch.setattr(hardware, "get_tpu_device_count", lambda: 1)
    _loader.load()
    yield torch
    patch.undo()
