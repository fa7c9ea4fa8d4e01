"""What a command needs in its environment to run on the emulated NPUs, and the options that are checked on the way.

The variables `ACCEL_EMULATE_NPU_*` are read by the emulated libraries (`src/common.cpp`); docs/settings.md lists them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from accel.errors import ArgumentError

PREFIX = "ACCEL_EMULATE_NPU_"
LIBRARIES = f"{PREFIX}LIBRARIES"  # set: this process runs on emulated NPUs, whose libraries lie there
MODES = ("immediate", "threaded")
MAX_DEVICES = 64
MIN_HBM = 64 << 20  # bytes: below it torch_npu's own start can fail, which is no use to anyone
_UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9,
          "K": 2**10, "M": 2**20, "G": 2**30}  # fmt: skip


def active(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started on emulated NPUs."""
    return bool(environ.get(LIBRARIES, "").strip())


def environment(
    libraries: Path,
    *,
    devices: int = 2,
    hbm: str = "64GiB",
    mode: str = "immediate",
    jitter: int = 0,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """`environ` with what makes torch_npu load on the emulated CANN in `libraries`.

    `devices`: how many NPUs there are. `hbm`: bytes of each, for each process, with an optional unit. `jitter`: the
    longest random pause before a task, in microseconds; threaded mode only. ACCEL_BACKEND becomes `npu` unless it is
    set. Raises `ArgumentError`.
    """
    if not 1 <= devices <= MAX_DEVICES:
        raise ArgumentError(f"--devices is {devices}; expected 1 to {MAX_DEVICES}")
    if mode not in MODES:
        raise ArgumentError(f"--mode is {mode!r}; expected {' or '.join(MODES)}")
    if jitter < 0:
        raise ArgumentError(f"--jitter is {jitter}; expected microseconds, 0 or more")
    if jitter and mode != "threaded":
        raise ArgumentError(f"--jitter {jitter} needs --mode threaded: in immediate mode nothing is delayed")
    size = parse_size(hbm)
    if size < MIN_HBM:
        raise ArgumentError(f"--hbm is {hbm} ({size} bytes); torch_npu needs at least {MIN_HBM >> 20}MiB")
    paths = [str(libraries), *filter(None, [environ.get("LD_LIBRARY_PATH")])]
    return {
        "ACCEL_BACKEND": "npu",
        **environ,
        "LD_LIBRARY_PATH": os.pathsep.join(paths),
        LIBRARIES: str(libraries),
        f"{PREFIX}DEVICES": str(devices),
        f"{PREFIX}HBM": str(size),
        f"{PREFIX}MODE": mode,
        f"{PREFIX}JITTER": str(jitter),
    }


def parse_size(text: str) -> int:
    """Bytes of `text`, such as `8GiB`, `512MB` or `1000000`. Raises `ArgumentError`."""
    match = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text.strip())
    if match is None or match.group(2).upper() not in _UNITS:
        raise ArgumentError(f"--hbm is {text!r}; expected a number of bytes with an optional unit, such as 8GiB")
    return int(match.group(1)) * _UNITS[match.group(2).upper()]
