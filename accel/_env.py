"""The process environment: the library's own `ACCEL_*` settings, and the one place that writes a vendor's variables.

Imports no torch. Vendor variables are written before the vendor library loads, never over the user's own value, and
each write is logged and kept for the record.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping

from accel.errors import ArgumentError

log = logging.getLogger("accel")

SETTINGS = {
    "ACCEL_BACKEND": "backend to use: cuda, npu (ascend), xla, tpu, cpu or a registered third-party name",
    "ACCEL_XLA_SPMD": "1: one process drives all XLA devices and the compiler splits each batch (SPMD); default 0",
    "ACCEL_NUM_THREADS": "CPU threads of each process; default: cores // local world size",
    "ACCEL_AOT_PYTHON": "Python with jax and libtpu, for compilation ahead of time; default: the one that runs",
    "ACCEL_FLIGHT_DIR": "folder for flight records; default: accel-flight-RUN among this host's temporary files",
    "ACCEL_LOG_LEVEL": "level of the `accel` logger: DEBUG, INFO, WARNING (default) or ERROR",
    # Of `accel emulate npu`, which sets most of them; the emulated libraries read them.
    "ACCEL_EMULATE_NPU_CACHE": "folder that the compiled emulator is kept in",
    "ACCEL_EMULATE_NPU_LIBRARIES": "folder of the emulated libraries in use; set: this process has emulated NPUs",
    "ACCEL_EMULATE_NPU_DEVICES": "NPUs that are emulated",
    "ACCEL_EMULATE_NPU_HBM": "bytes of memory of each emulated NPU, for each process",
    "ACCEL_EMULATE_NPU_MODE": "immediate, or threaded: a stream has a thread",
    "ACCEL_EMULATE_NPU_JITTER": "longest random pause before a task, in microseconds, in threaded mode",
    "ACCEL_EMULATE_NPU_CANN": "version of CANN that the emulator gives itself out as",
    "ACCEL_EMULATE_NPU_TRACE": "what is traced on standard error: runtime, ops, hccl, fallback, applog",
    "ACCEL_EMULATE_NPU_FALLBACKS": "file that names each operator which runs on the CPU instead",
}

_written: dict[str, str] = {}


def unknown_settings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One line for each `ACCEL_*` variable that is not a setting, with the nearest match."""
    lines = []
    for name in sorted(environ):
        if name.startswith("ACCEL_") and name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(SETTINGS)}"
            lines.append(f"{name}={environ[name]!r} is not a setting of accel and has no effect; {hint}")
    return lines


def integer(name: str, environ: Mapping[str, str] = os.environ) -> int | None:
    """The setting `name` as a positive integer; None when unset. Raises `ArgumentError` for anything else."""
    text = environ.get(name, "")
    if not text.strip():
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise ArgumentError(f"{name}={text!r}: expected a positive integer; unset it to use the default")
    return int(text)


def switch(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the setting `name` is 1; 0 and unset are off. Raises `ArgumentError` for anything else."""
    text = environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise ArgumentError(f"{name}={environ[name]!r}: expected 1 for on, or 0 for off")
    return text == "1"


def set_log_level(environ: Mapping[str, str] = os.environ) -> None:
    """Apply ACCEL_LOG_LEVEL to the `accel` logger; leaves logging as it is when unset."""
    text = environ.get("ACCEL_LOG_LEVEL", "")
    if not text.strip():
        return
    if text.strip().upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ArgumentError(f"ACCEL_LOG_LEVEL={text!r}: expected DEBUG, INFO, WARNING or ERROR")
    log.setLevel(text.strip().upper())
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(handler)


def set_vendor_variables(wanted: Mapping[str, str], environ: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """Write each vendor variable that the user has not set; return the values now in force. What an earlier session
    wrote is written anew.
    """
    for name, value in wanted.items():
        if name in environ and environ[name] != _written.get(name):
            if environ[name] != value:
                log.info("%s=%s is kept as the user set it (accel would use %s)", name, environ[name], value)
            continue
        environ[name] = value
        _written[name] = value
        log.info("%s=%s set by accel", name, value)
    return {name: environ[name] for name in wanted}


def vendor_variables_written() -> dict[str, str]:
    """What `set_vendor_variables` has written in this process, for the record."""
    return dict(_written)


@contextlib.contextmanager
def without_autoload(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Keep `import torch` from loading vendor plug-ins by itself: a broken one would make torch unusable (T33)."""
    name = "TORCH_DEVICE_BACKEND_AUTOLOAD"
    if name in environ or "torch" in sys.modules:
        yield
        return
    environ[name] = "0"
    try:
        yield
    finally:
        environ.pop(name, None)
