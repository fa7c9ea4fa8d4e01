"""NVML through ctypes: what NVIDIA GPUs are here, asked of the driver without initialising CUDA.

CUDA cannot be used after a fork once it is initialised, and NVML can: so listing goes through NVML alone (T32). It is
opened and closed around each question. The library is the driver's own; the package nvidia-ml-py wraps the same calls.
Reference: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"  # tests point it at a library of their own

_SUCCESS, _NOT_SUPPORTED, _NOT_FOUND, _INSUFFICIENT_SIZE, _DRIVER_NOT_LOADED, _VERSION_MISMATCH = 0, 3, 6, 7, 9, 18
# nvmlClocksEventReason...: what of it lowers the clock of a GPU that works. Left out: idle, clocks that were asked for.
_HELD = {0x04: "power limit", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
_TEXT = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE


class NvmlError(RuntimeError):
    """The driver cannot be asked; the message says why, as a clause."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver lists it, in the order of its PCI address."""

    name: str
    uuid: str  # "GPU-..."
    capability: tuple[int, int]  # compute capability, such as (8, 0)
    mig: tuple[str, ...] | None  # UUIDs of its MIG devices, "MIG-..."; None where MIG is off


@dataclass(frozen=True)
class Driver:
    """What the driver says of the machine."""

    version: str  # such as "550.54.15"
    cuda: tuple[int, int]  # the newest CUDA that it runs
    gpus: tuple[Gpu, ...]


def driver() -> Driver:
    """Ask the driver. Raises `NvmlError`."""
    with _opened() as library:
        text = ctypes.create_string_buffer(_TEXT)
        _call(library, "nvmlSystemGetDriverVersion", text, ctypes.c_uint(_TEXT))
        cuda, count = ctypes.c_int(), ctypes.c_uint()
        _call(library, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))  # 12040 is 12.4
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        gpus = tuple(_gpu(library, index) for index in range(count.value))
        return Driver(text.value.decode(), (cuda.value // 1000, cuda.value % 1000 // 10), gpus)


def energy(uuid: str) -> float | None:
    """Joules that the GPU has taken since the driver was loaded; None where it does not count (before Volta, MIG)."""
    millijoules, handle = ctypes.c_ulonglong(), ctypes.c_void_p()
    try:
        with _opened() as library:
            _call(library, "nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
            _call(library, "nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(millijoules))
    except NvmlError:  # a MIG device has no counter of its own, a container may not be allowed to read it
        return None
    return millijoules.value / 1e3


def disturbance(uuid: str) -> tuple[tuple[str, ...] | None, int | None, dict[str, str]]:
    """What holds the GPU's clock down at this moment, how many processes compute on it, and why one of them is None."""
    reasons: dict[str, str] = {}
    throttled = processes = None
    try:
        with _opened() as library:
            handle, mask, count = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_uint(0)
            _call(library, "nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
            try:
                _call(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(mask))
                throttled = tuple(dict.fromkeys(name for bit, name in _HELD.items() if mask.value & bit))
            except NvmlError as error:  # not told of a MIG device
                reasons["throttled"] = str(error)
            name = "nvmlDeviceGetComputeRunningProcesses_v3"
            code = getattr(library, name)(handle, ctypes.byref(count), None)  # without room it says how much it needs
            if code not in (_SUCCESS, _INSUFFICIENT_SIZE):
                _check(library, name, code)
            # This process is one of them, unless its container hides it from the driver's list, and others with it.
            processes = count.value or None
            if processes is None:
                reasons["processes"] = "the driver lists no process, not this one either: a container may hide them"
    except (NvmlError, AttributeError) as error:
        reasons = {name: str(error) for name in ("throttled", "processes")} | reasons
    return throttled, processes, reasons


def _gpu(library: Any, index: int) -> Gpu:
    handle = ctypes.c_void_p()
    _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    name = ctypes.create_string_buffer(_TEXT)
    _call(library, "nvmlDeviceGetName", handle, name, ctypes.c_uint(_TEXT))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call(library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    return Gpu(name.value.decode(), _uuid(library, handle), (major.value, minor.value), _mig(library, handle))


def _uuid(library: Any, handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(_TEXT)
    _call(library, "nvmlDeviceGetUUID", handle, text, ctypes.c_uint(_TEXT))
    return text.value.decode()


def _mig(library: Any, gpu: ctypes.c_void_p) -> tuple[str, ...] | None:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    code = library.nvmlDeviceGetMigMode(gpu, ctypes.byref(current), ctypes.byref(pending))
    if code == _NOT_SUPPORTED or not current.value:  # chips before A100 have no MIG
        return None
    _check(library, "nvmlDeviceGetMigMode", code)
    most = ctypes.c_uint()
    _call(library, "nvmlDeviceGetMaxMigDeviceCount", gpu, ctypes.byref(most))
    found = []
    for index in range(most.value):
        handle = ctypes.c_void_p()
        code = library.nvmlDeviceGetMigDeviceHandleByIndex(gpu, ctypes.c_uint(index), ctypes.byref(handle))
        if code == _NOT_FOUND:  # the places of devices that were not made
            continue
        _check(library, "nvmlDeviceGetMigDeviceHandleByIndex", code)
        found.append(_uuid(library, handle))
    return tuple(found)


@contextlib.contextmanager
def _opened() -> Iterator[Any]:
    try:
        library = ctypes.CDLL(LIBRARY)
        started = library.nvmlInit_v2()
    except (OSError, AttributeError) as error:
        raise NvmlError(f"the driver's library {LIBRARY} cannot be loaded ({error})") from error
    if started == _DRIVER_NOT_LOADED:
        raise NvmlError("the kernel driver is not loaded (NVML: driver not loaded); load it or install it anew")
    if started == _VERSION_MISMATCH:
        raise NvmlError(
            "the kernel driver and its library have different versions (NVML: driver/library version mismatch), as "
            "after an update; restart the machine"
        )
    _check(library, "nvmlInit_v2", started)
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _call(library: Any, name: str, *arguments: Any) -> None:
    _check(library, name, getattr(library, name)(*arguments))


def _check(library: Any, name: str, code: int) -> None:
    if code != _SUCCESS:
        library.nvmlErrorString.restype = ctypes.c_char_p
        raise NvmlError(f"the driver cannot be asked: {name} failed with NVML error {code} ({_said(library, code)})")


def _said(library: Any, code: int) -> str:
    text = library.nvmlErrorString(code)
    return text.decode() if text else "no text"
