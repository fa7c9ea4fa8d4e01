"""One PyTorch training script, any accelerator.

Importing accel imports neither torch nor a vendor package, because a broken vendor plug-in can make `import torch`
itself fail. Public names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from accel import _env, errors
from accel.errors import AccelError

if TYPE_CHECKING:
    from accel._init import init
    from accel.backend import Backend, BackendInfo
    from accel.batch_size import BatchSize, find_batch_size
    from accel.precision import LossScale
    from accel.recompute import checkpoint
    from accel.registry import backends, get_backend
    from accel.session import Lap, Session, StepResult

__version__ = "0.1.0"

__all__ = [
    "AccelError",
    "Backend",
    "BackendInfo",
    "BatchSize",
    "Lap",
    "LossScale",
    "Session",
    "StepResult",
    "backends",
    "checkpoint",
    "errors",
    "find_batch_size",
    "get_backend",
    "init",
]

_HOME = {
    "Backend": "accel.backend",
    "BackendInfo": "accel.backend",
    "BatchSize": "accel.batch_size",
    "Lap": "accel.session",
    "LossScale": "accel.precision",
    "Session": "accel.session",
    "StepResult": "accel.session",
    "backends": "accel.registry",
    "checkpoint": "accel.recompute",
    "find_batch_size": "accel.batch_size",
    "get_backend": "accel.registry",
    "init": "accel._init",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'accel' has no attribute {name!r}")
    with _env.without_autoload():
        value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
