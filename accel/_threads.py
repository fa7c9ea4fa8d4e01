"""CPU threads of a process: cores // local world size unless the user set them (T74).

torchrun sets OMP_NUM_THREADS=1 for its children and a spawned process takes all cores; a CPU baseline would differ by
the number of cores between the two.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from accel import _env


@dataclass(frozen=True)
class Threads:
    """Threads in force, and who decided: for the record."""

    count: int
    source: str


def configure(local_world_size: int, environ: Mapping[str, str] = os.environ) -> Threads:
    """Set torch's intra-op threads for this process and return what is in force."""
    wanted = _env.integer("ACCEL_NUM_THREADS", environ)
    if wanted is not None:
        source = "ACCEL_NUM_THREADS"
    elif user_set_omp(environ):
        return Threads(torch.get_num_threads(), "OMP_NUM_THREADS")
    else:
        wanted = max(1, available_cores() // local_world_size)
        source = "cores // local world size"
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    return Threads(wanted, source)


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def user_set_omp(environ: Mapping[str, str], parent: Path | None = None) -> bool:
    """Whether OMP_NUM_THREADS comes from the user rather than from torchrun, which writes 1 where it is unset.

    torchrun changes its own environment after it starts, so its initial one, which Linux keeps in /proc, tells the
    two apart. Without /proc a 1 under torchrun is taken for torchrun's.
    """
    if "OMP_NUM_THREADS" not in environ:
        return False
    if "TORCHELASTIC_RUN_ID" not in environ or environ["OMP_NUM_THREADS"] != "1":
        return True
    parent = parent or Path(f"/proc/{os.getppid()}/environ")
    try:
        return any(entry.startswith(b"OMP_NUM_THREADS=") for entry in parent.read_bytes().split(b"\0"))
    except OSError:  # no procfs, or another user's process
        return False
