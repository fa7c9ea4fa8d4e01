"""Huawei Ascend NPUs (HCCL through torch_npu), and torch_npu on an emulated CANN where its variable says so.

Detection looks for the hardware and for files that installers leave; torch_npu is imported in a subprocess, with
torch's autoload off, so that one that cannot be loaded harms nobody (T33).
"""

from __future__ import annotations

import logging
import math
import os
import re

from accel import _probe
from accel.allocator import Allocator
from accel.backend import BackendInfo, BackendParts
from accel.errors import ArgumentError
from accel_npu import _versions, _visible
from accel_npu.emulator import environment

log = logging.getLogger("accel")

HUAWEI = "0x19e5"  # PCI vendor id
ACCELERATOR_CLASSES = ("0x1200",)  # processing accelerator: the vendor makes network and storage cards too
ABSENT = "no Ascend NPU is present (no /dev/davinci* device file, no Huawei accelerator on the PCI bus)"
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it from breaking `import torch`"
# Seconds that HCCL takes for connecting and for executing (CANN 8.5, list of environment variables).
CONNECT, EXECUTE = (120, 7200), (1, 17340)


def npu_hardware() -> str | None:
    """The NPUs in this machine, or those of the emulated CANN."""
    if emulated_devices() is not None:
        return f"{emulated_devices()} emulated Ascend NPU(s)"
    # The driver makes one /dev/davinciN an NPU beside the manager /dev/davinci_manager.
    found = _probe.device_files("dev/davinci[0-9]*") or _probe.pci_devices(HUAWEI, ACCELERATOR_CLASSES)
    return f"{len(found)} Ascend NPU(s)" if found else None


def emulated_devices() -> int | None:
    """How many NPUs the emulated CANN shows; None where none is in force."""
    return int(os.environ[f"{environment.PREFIX}DEVICES"]) if environment.active() else None


def present() -> list[int] | None:
    """Physical ids of the NPUs; None where there are no device files to tell them by."""
    if emulated_devices() is not None:
        return list(range(emulated_devices() or 0))
    files = _probe.device_files("dev/davinci[0-9]*")
    return sorted(int(re.sub(r"\D", "", name.rpartition("/")[2])) for name in files) or None


class NpuSpec:
    """Registered as `npu` in the entry-point group `accel.backends`."""

    name = "npu"
    aliases: tuple[str, ...] = ("ascend",)
    vendor = "Huawei"  # as `accel.chips` spells it

    def hardware(self) -> str | None:
        return npu_hardware()

    def probe(self) -> BackendInfo:
        hardware, versions = npu_hardware(), _versions.installed()
        emulated = emulated_devices() is not None
        pairs = _versions.mismatches(versions)
        why_not = _refused(hardware, versions, pairs)
        reason = "; ".join([f"{hardware} through torch_npu and HCCL", *pairs])
        if emulated:
            reason = "torch_npu on an emulated CANN: it shows that the software works, not how an Ascend NPU does"
        return BackendInfo(
            self.name,
            usable=why_not is None,
            reason=why_not or reason,
            versions=versions,
            origin=None if why_not else "emulated" if emulated else "measured",
            hardware=hardware,
            aliases=self.aliases,
        )

    def variables(self, timeout: float) -> dict[str, str]:
        """HCCL's own limits win over torch's, and it reads them once (T38)."""
        seconds = math.ceil(timeout)
        return {
            "HCCL_CONNECT_TIMEOUT": str(min(max(seconds, CONNECT[0]), CONNECT[1])),
            "HCCL_EXEC_TIMEOUT": str(min(max(seconds, EXECUTE[0]), EXECUTE[1])),
            # torch_npu's watchdog otherwise ends the process with SIGABRT before its error, which says what happened,
            # reaches Python (torch_npu 2.9 to 2.14; as torch's NCCL watchdog does).
            "TORCH_HCCL_ASYNC_ERROR_HANDLING": "0",
        }

    def allocator(self) -> Allocator:
        from accel_npu.memory import ALLOCATOR

        return ALLOCATOR

    def load(self) -> BackendParts:
        for line in _visible.misspelt():
            log.warning("%s", line)
        from accel_npu.device import NpuDevice, shim_report
        from accel_npu.memory import NpuMemory
        from accel_npu.numerics import NpuNumerics
        from accel_npu.table import capabilities
        from accel_npu.transport import NpuTransport

        shim = shim_report()
        if shim is not None:
            log.warning("%s", shim)
        device, transport = NpuDevice(_visible.visible(present())), NpuTransport()
        return BackendParts(device, transport, NpuNumerics(), NpuMemory(device), capabilities(transport))


def _refused(hardware: str | None, versions: dict[str, str], pairs: list[str]) -> str | None:
    """Why torch_npu cannot be used; None when it can."""
    found = f"{hardware} is present, but " if hardware else f"{ABSENT}; "
    if not _probe.installed("torch_npu"):
        return f"{found}torch_npu is not installed; run `pip install accel-torch[npu]`" if hardware else ABSENT
    try:
        shown = _visible.visible(present())
    except ArgumentError as error:
        return str(error)
    if shown == []:
        return f"{_visible.VARIABLE}='': it shows no NPU to this process; unset it to see every NPU"
    pair = ", ".join(f"{name} {version}" for name, version in versions.items())
    if _versions.cuda_build(versions.get("torch")):
        return (
            f"torch {versions.get('torch')} is a build that carries CUDA, which torch_npu refuses or aborts on (found "
            f"{pair}): install the CPU build of the same version, torch=={_plain(versions)}+cpu, from PyTorch's "
            f"index of CPU wheels; on x86-64 pip brings the CUDA build otherwise. {AUTOLOAD}"
        )
    # The emulator is built only for a pair that loads on it, which would cost each process seconds to try again.
    broken = None if emulated_devices() is not None else _probe.import_error("torch_npu")
    if broken is not None:
        told = "".join(f"; {line}" for line in pairs)
        without_cann = "" if "CANN" in versions else "; CANN is not found on this machine"
        return f"importing torch_npu fails: {broken} (found {pair}{without_cann}){told}. {AUTOLOAD}"
    if hardware is None:
        return ABSENT
    return None


def _plain(versions: dict[str, str]) -> str:
    return versions.get("torch", "").split("+")[0]


SPEC = NpuSpec()
